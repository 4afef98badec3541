#if defined(__AVX2__)
#include <immintrin.h>
#include <string.h>

struct lanes {
    __m256i a, b;
};
#define NO_LANES {_mm256_setzero_si256(), _mm256_setzero_si256()}

static inline int32_t four(const uint8_t *x)
{
    int32_t all;
    memcpy(&all, x, 4);
    return all;
}

static inline void add_eight(__m256i x, const int32_t *bias, int32_t *sums)
{
    const __m256i all = _mm256_add_epi32(x, _mm256_loadu_si256((const __m256i *)(const void *)bias));
    _mm256_storeu_si256((__m256i *)(void *)sums, all);
}

#if defined(__AVX512VNNI__) && defined(__AVX512VL__) || defined(__AVXVNNI__)
#if defined(__AVX512VNNI__) && defined(__AVX512VL__)
#define DPBUSD _mm256_dpbusd_epi32
#else
#define DPBUSD _mm256_dpbusd_avx_epi32
#endif
/* Two blocks of 8 sums, if there is another one. */
#define TOGETHER 16
#define SECOND(n, left) ((left) > 8 ? 8 * (n) : 0)

static inline struct lanes multiplied(struct lanes s, const uint8_t *x, const int8_t *w0, const int8_t *w1)
{
    const __m256i all = _mm256_set1_epi32(four(x));
    s.a = DPBUSD(s.a, all, _mm256_loadu_si256((const __m256i *)(const void *)w0));
    s.b = DPBUSD(s.b, all, _mm256_loadu_si256((const __m256i *)(const void *)w1));
    return s;
}

static inline void store(struct lanes s, const int32_t *bias, int32_t *sums, int32_t left)
{
    add_eight(s.a, bias, sums);
    if (left > 8)
        add_eight(s.b, bias + 8, sums + 8);
}
#else
/* Sums of 4 outputs and of 4 more, each in two parts. */
#define TOGETHER 8
#define SECOND(n, left) 16

static inline struct lanes multiplied(struct lanes s, const uint8_t *x, const int8_t *w0, const int8_t *w1)
{
    const __m256i all = _mm256_cvtepu8_epi16(_mm_set1_epi32(four(x)));
    const __m256i v0 = _mm256_cvtepi8_epi16(_mm_loadu_si128((const __m128i *)(const void *)w0));
    const __m256i v1 = _mm256_cvtepi8_epi16(_mm_loadu_si128((const __m128i *)(const void *)w1));
    s.a = _mm256_add_epi32(s.a, _mm256_madd_epi16(all, v0));
    s.b = _mm256_add_epi32(s.b, _mm256_madd_epi16(all, v1));
    return s;
}

static inline void store(struct lanes s, const int32_t *bias, int32_t *sums, int32_t left)
{
    (void)left;
    add_eight(_mm256_permute4x64_epi64(_mm256_hadd_epi32(s.a, s.b), 0xd8), bias, sums);
}
#endif
#endif

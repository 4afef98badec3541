/* Where the processor multiplies many numbers at once: four of a row by those of TOGETHER outputs, whose sums are
   `lanes`. The weights of the second half begin SECOND after those of the first. */
#if __STDC_HOSTED__ && (defined(__SSE2__) || (defined(__ARM_NEON) && !defined(__ARM_BIG_ENDIAN)))
#include <string.h>
#if defined(__AVX2__)
#include <immintrin.h>
#elif defined(__SSE2__)
#include <emmintrin.h>
#else
#include <arm_neon.h>
#endif

static inline int32_t four(const uint8_t *x)
{
    int32_t all;
    memcpy(&all, x, 4);
    return all;
}

#if defined(__AVX2__)
struct lanes {
    __m256i a, b;
};
#define NO_LANES {_mm256_setzero_si256(), _mm256_setzero_si256()}

static inline void add_eight(__m256i sums, const int32_t *bias, int32_t *y)
{
    const __m256i all = _mm256_add_epi32(sums, _mm256_loadu_si256((const __m256i *)(const void *)bias));
    _mm256_storeu_si256((__m256i *)(void *)y, all);
}

#if (defined(__AVX512VNNI__) && defined(__AVX512VL__)) || defined(__AVXVNNI__)
#define TOGETHER 16
#define SECOND(n, left) ((left) > 8 ? 8 * (n) : 0)

static inline __m256i fours(__m256i sums, __m256i x, const int8_t *w)
{
#if defined(__AVX512VNNI__) && defined(__AVX512VL__)
    return _mm256_dpbusd_epi32(sums, x, _mm256_loadu_si256((const __m256i *)(const void *)w));
#else
    return _mm256_dpbusd_avx_epi32(sums, x, _mm256_loadu_si256((const __m256i *)(const void *)w));
#endif
}

static inline struct lanes multiplied(struct lanes s, const uint8_t *x, const int8_t *w0, const int8_t *w1)
{
    const __m256i all = _mm256_set1_epi32(four(x));
    const struct lanes found = {fours(s.a, all, w0), fours(s.b, all, w1)};
    return found;
}

static inline void store(struct lanes s, const int32_t *bias, int32_t *sums, int32_t left)
{
    add_eight(s.a, bias, sums);
    if (left > 8)
        add_eight(s.b, bias + 8, sums + 8);
}
#else
#define TOGETHER 8
#define SECOND(n, left) 16

static inline __m256i pairs(__m256i sums, __m256i x, const int8_t *w)
{
    const __m256i wide = _mm256_cvtepi8_epi16(_mm_loadu_si128((const __m128i *)(const void *)w));
    return _mm256_add_epi32(sums, _mm256_madd_epi16(x, wide));
}

static inline struct lanes multiplied(struct lanes s, const uint8_t *x, const int8_t *w0, const int8_t *w1)
{
    const __m256i all = _mm256_cvtepu8_epi16(_mm_set1_epi32(four(x)));
    const struct lanes found = {pairs(s.a, all, w0), pairs(s.b, all, w1)};
    return found;
}

static inline void store(struct lanes s, const int32_t *bias, int32_t *sums, int32_t left)
{
    (void)left;
    add_eight(_mm256_permute4x64_epi64(_mm256_hadd_epi32(s.a, s.b), 0xd8), bias, sums);
}
#endif
#elif defined(__SSE2__)
struct lanes {
    __m128i a, b;
};
#define NO_LANES {_mm_setzero_si128(), _mm_setzero_si128()}
#define TOGETHER 4
#define SECOND(n, left) 8

static inline __m128i pairs(__m128i sums, __m128i x, const int8_t *w)
{
    const __m128i narrow = _mm_loadl_epi64((const __m128i *)(const void *)w);
    return _mm_add_epi32(sums, _mm_madd_epi16(x, _mm_srai_epi16(_mm_unpacklo_epi8(narrow, narrow), 8)));
}

static inline struct lanes multiplied(struct lanes s, const uint8_t *x, const int8_t *w0, const int8_t *w1)
{
    const __m128i all = _mm_unpacklo_epi8(_mm_set1_epi32(four(x)), _mm_setzero_si128());
    const struct lanes found = {pairs(s.a, all, w0), pairs(s.b, all, w1)};
    return found;
}

static inline void store(struct lanes s, const int32_t *bias, int32_t *sums, int32_t left)
{
    const __m128 a = _mm_castsi128_ps(s.a), b = _mm_castsi128_ps(s.b);
    const __m128i even = _mm_castps_si128(_mm_shuffle_ps(a, b, 0x88));
    const __m128i odd = _mm_castps_si128(_mm_shuffle_ps(a, b, 0xdd));
    const __m128i start = _mm_loadu_si128((const __m128i *)(const void *)bias);
    (void)left;
    _mm_storeu_si128((__m128i *)(void *)sums, _mm_add_epi32(start, _mm_add_epi32(even, odd)));
}
#else
struct lanes {
    int32x4_t a, b;
};
#define NO_LANES {vdupq_n_s32(0), vdupq_n_s32(0)}
#define TOGETHER 8
#define SECOND(n, left) 0

static inline struct lanes multiplied(struct lanes s, const uint8_t *x, const int8_t *w0, const int8_t *w1)
{
    const uint8x8_t narrow = vreinterpret_u8_s32(vdup_n_s32(four(x)));
    const int16x4_t all = vget_low_s16(vreinterpretq_s16_u16(vmovl_u8(narrow)));
    const int8x8x4_t w = vld4_s8(w0);
    const int16x8_t v0 = vmovl_s8(w.val[0]), v1 = vmovl_s8(w.val[1]), v2 = vmovl_s8(w.val[2]), v3 = vmovl_s8(w.val[3]);
    (void)w1;
    s.a = vmlal_lane_s16(s.a, vget_low_s16(v0), all, 0);
    s.b = vmlal_lane_s16(s.b, vget_high_s16(v0), all, 0);
    s.a = vmlal_lane_s16(s.a, vget_low_s16(v1), all, 1);
    s.b = vmlal_lane_s16(s.b, vget_high_s16(v1), all, 1);
    s.a = vmlal_lane_s16(s.a, vget_low_s16(v2), all, 2);
    s.b = vmlal_lane_s16(s.b, vget_high_s16(v2), all, 2);
    s.a = vmlal_lane_s16(s.a, vget_low_s16(v3), all, 3);
    s.b = vmlal_lane_s16(s.b, vget_high_s16(v3), all, 3);
    return s;
}

static inline void store(struct lanes s, const int32_t *bias, int32_t *sums, int32_t left)
{
    (void)left;
    vst1q_s32(sums, vaddq_s32(vld1q_s32(bias), s.a));
    vst1q_s32(sums + 4, vaddq_s32(vld1q_s32(bias + 4), s.b));
}
#endif
#endif

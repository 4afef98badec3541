/* qfb.h: reads .qfb files, the format of quantized networks that spec.md describes. One header, C99, no other library.
 *
 * It allocates nothing, writes nothing, and computes without floats. A file is bytes in memory, mapped or read by the
 * caller, which must stay as they are while it is used. `qfb_open` walks over all metadata once: every offset, vtable,
 * length, string, index, shape, scale. What it accepts can be read without another check, so the functions that hand
 * out tensors and nodes fail only for an index that is too large; those that return no code must be given an index that
 * exists. Getters write to a `qfb_file` only when they fail: threads may share one as long as none fails. Numbers are put
 * together from bytes: it does not matter how the machine orders them, nor how the bytes are aligned.
 *
 *     qfb_file file;
 *     qfb_tensor weight;
 *     if (qfb_open(&file, bytes, size, 0) == QFB_OK && qfb_find_tensor(&file, "conv1.weight", &weight) == QFB_OK)
 *         use(weight.data, weight.size);
 *
 * "Rule" is a number of spec.md: F of the container, V of the network in it. Names that end in _ are the library's own.
 * Sections: errors and types; Bytes; Structure, which finds tables, fields and offsets; Values, which gives them meaning;
 * Reading, what callers use once a file is open; Rules, checked one after the other when it is opened; Opening. */
#ifndef QFB_H
#define QFB_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

/* ---- What can go wrong ---- */

typedef enum {
    QFB_OK = 0,
    QFB_NOT_QFB,      /* the bytes are not a .qfb file */
    QFB_NEWER,        /* the file needs a newer reader */
    QFB_BROKEN,       /* a container rule is broken: truncated, or not what a writer would write */
    QFB_DAMAGED,      /* a sha256 differs from the one stated */
    QFB_INVALID,      /* a validity rule is broken */
    QFB_MISSING,      /* there is no element with that index or name */
    QFB_UNSUPPORTED,  /* from here on the interpreter (qfb_run.h): a node that it cannot run */
    QFB_MEMORY,       /* the memory that was given is too small */
    QFB_WORK,         /* more work than allowed */
    QFB_INPUT,        /* an input does not fit the model */
    QFB_OVERFLOW,     /* a sum exceeds int32 */
    QFB_SHARDS        /* the data is in shards: give them to qfb_open_shards */
} qfb_code;

/* A failure: what, which rule it breaks ("" if none), and where: `place` is "byte", "tensor", "node", "buffer", "vector"
 * "shard" or "file", and `index` says which one. The texts are constants. What this reader lacks is named: a required
 * feature, or a shard, by `name`, which lies in the file ("" if none); required flags, or the code of an element type, by
 * `number`. */
typedef struct {
    qfb_code code;
    const char *rule, *what, *place, *name;
    uint64_t index, number;
} qfb_error;

/* ---- What a file holds ---- */

typedef enum {
    QFB_BOOL = 1, QFB_INT8, QFB_UINT8, QFB_INT16, QFB_UINT16, QFB_INT32, QFB_UINT32, QFB_INT64, QFB_UINT64,
    QFB_FLOAT16, QFB_BFLOAT16, QFB_FLOAT32, QFB_FLOAT64, QFB_INT4, QFB_UINT4, QFB_INT2, QFB_UINT2,
    QFB_FLOAT8_E4M3FN, QFB_FLOAT8_E5M2, QFB_FLOAT8_E4M3FNUZ, QFB_FLOAT8_E5M2FNUZ, QFB_FLOAT8_E8M0FNU,
    QFB_FLOAT4_E2M1FN
} qfb_dtype;

enum { QFB_MAX_RANK = 32, QFB_HEADER_SIZE = 128, QFB_PAGE = 4096, QFB_ALIGNMENT = 64 };
#define QFB_INLINE UINT32_MAX /* instead of the index of a buffer: the bytes lie in the metadata */

enum {
    QFB_SKIP_DIGESTS = 1, /* do not check the sha256 of the metadata (its structure is checked all the same) */
    QFB_CHECK_DATA = 2    /* check all data, too: every sha256, the zeros between buffers, the range of integers */
};

/* A file that holds a part of the data of another: its bytes, NULL if they cannot be had. `begin` is the library's own. */
typedef struct {
    const void *bytes;
    uint64_t size, begin;
} qfb_shard;

/* An open file. The fields are the library's own, but for `error`: the last failure. */
typedef struct {
    const uint8_t *bytes, *data;
    const qfb_shard *shards; /* NULL: the data is in the file */
    uint64_t size, data_size;
    uint32_t meta_size, start, model, graph; /* ends of the FlatBuffer, positions of two tables */
    uint32_t tensors, nodes, inputs, outputs, buffers, sources, metadata, vectors, stated; /* of vectors, or 0 */
    qfb_error error;
} qfb_file;

/* A text in UTF-8: `size` bytes, none of them zero, and a zero byte after them. `text` is "" where there is none. */
typedef struct {
    const char *text;
    uint32_t size;
} qfb_string;

/* A list of integers (of 1, 4 or 8 bytes), doubles or texts: take elements with qfb_integer, qfb_double or qfb_bits, and
 * qfb_text. */
typedef struct {
    const uint8_t *bytes; /* of the metadata */
    uint32_t at, count;
    uint8_t width;
    uint8_t present; /* 0: absent, which is not the same as empty */
} qfb_list;

/* An array in the file: row-major, little-endian, types of less than 8 bits packed from the lowest bits on. */
typedef struct {
    const uint8_t *data;
    uint64_t size; /* bytes */
    uint32_t buffer;
} qfb_array;

/* The numbers of a quantization: one for each block, or one for all. Take them with qfb_number. */
typedef struct {
    qfb_dtype dtype; /* 0: there are none */
    qfb_list shape;  /* empty: one number */
    uint64_t count;
    qfb_array array;
    uint32_t second_level; /* not 0: they are codes, and qfb_second_level says of which real numbers */
} qfb_numbers;

/* real = (q - zero_point) * scale + offset, quant_min <= q <= quant_max. */
typedef struct {
    qfb_list block; /* elements of a block along each dimension, 0: all of them; empty: one scale for the tensor */
    qfb_numbers scale;
    qfb_numbers zero_point;  /* integers, or floats of the type of the scales; the integer 0 where the file has none */
    qfb_numbers offset;
    qfb_numbers table;       /* what the codes mean, from the smallest on: instead of q - zero_point */
    qfb_numbers group_index; /* the block of each position along the one dimension that has blocks of more than 1 */
    int64_t quant_min, quant_max;
    qfb_string scale_name, zero_point_name;
    qfb_string observer, qscheme; /* what calibration saw; no influence on any result */
    qfb_list observed_minimum, observed_maximum;
    uint8_t has_observed_range;
    int64_t observed_quant_min, observed_quant_max;
} qfb_quantization;

typedef struct {
    qfb_string name;
    qfb_dtype dtype;
    qfb_list shape; /* -1: not fixed; `present` is 0 where not even the number of dimensions is known */
    qfb_list dims;  /* names of sizes: empty, or one for each dimension, "" for none */
    qfb_list aliases;
    uint8_t is_constant, is_quantized;
    qfb_array array; /* of a constant */
    qfb_quantization quantization;
} qfb_tensor;

typedef struct {
    qfb_string operator_name, rule, name, scope, source_operator;
    uint32_t version;
    qfb_list inputs, outputs; /* indices of tensors; -1: an optional input that is absent */
    uint32_t attributes, attribute_count;
} qfb_node;

typedef enum { QFB_INT = 1, QFB_FLOAT, QFB_STRING, QFB_INTS, QFB_FLOATS, QFB_STRINGS } qfb_attribute_type;

typedef struct {
    qfb_string name;
    qfb_attribute_type type;
    int64_t integer;     /* QFB_INT */
    uint64_t float_bits; /* QFB_FLOAT: those of a double */
    qfb_string string;   /* QFB_STRING */
    qfb_list list;       /* the others */
} qfb_attribute;

/* A value of a test vector: its dtype and quantization are those of the graph's input or output. */
typedef struct {
    qfb_list shape;
    qfb_array array;
} qfb_value;

/* ---- Bytes, numbers and texts in them ---- */

static inline uint32_t qfb_u16_(const uint8_t *p) { return (uint32_t)p[0] | (uint32_t)p[1] << 8; }
static inline uint32_t qfb_u32_(const uint8_t *p) { return qfb_u16_(p) | qfb_u16_(p + 2) << 16; }
static inline uint64_t qfb_u64_(const uint8_t *p) { return qfb_u32_(p) | (uint64_t)qfb_u32_(p + 4) << 32; }
static inline int64_t qfb_signed_(uint64_t bits, int width)
{ /* two's complement of `width` bits, without a conversion that the language leaves open */
    uint64_t sign = (uint64_t)1 << (width - 1), low = bits & (sign - 1);
    return (bits & sign) ? -(int64_t)(sign - 1 - low) - 1 : (int64_t)low;
}

static inline int64_t qfb_integer(const qfb_list *list, uint32_t index)
{
    const uint8_t *p = list->bytes + list->at + (size_t)index * list->width;
    return list->width == 8 ? qfb_signed_(qfb_u64_(p), 64) : list->width == 4 ? qfb_signed_(qfb_u32_(p), 32) : *p;
}
static inline uint64_t qfb_bits(const qfb_list *list, uint32_t index)
{
    return qfb_u64_(list->bytes + list->at + (size_t)index * 8);
}
static inline double qfb_double(const qfb_list *list, uint32_t index)
{
    uint64_t bits = qfb_bits(list, index);
    double value;
    memcpy(&value, &bits, 8);
    return value;
}
static inline qfb_string qfb_string_at_(const uint8_t *bytes, uint32_t at)
{
    qfb_string string;
    string.text = at ? (const char *)bytes + at + 4 : "";
    string.size = at ? qfb_u32_(bytes + at) : 0;
    return string;
}
static inline qfb_string qfb_text(const qfb_list *list, uint32_t index)
{
    uint32_t at = list->at + 4 * index;
    return qfb_string_at_(list->bytes, at + qfb_u32_(list->bytes + at));
}
static inline int qfb_compare(qfb_string a, qfb_string b)
{
    int order = memcmp(a.text, b.text, a.size < b.size ? a.size : b.size);
    return order ? order : (a.size > b.size) - (a.size < b.size);
}
static inline int qfb_equals(qfb_string a, const char *b) { return strlen(b) == a.size && !memcmp(a.text, b, a.size); }

static inline qfb_code qfb_fail_(
    qfb_file *file, qfb_code code, const char *rule, const char *place, uint64_t index, const char *what)
{
    file->error.code = code, file->error.rule = rule, file->error.what = what;
    file->error.place = place, file->error.index = index, file->error.name = "", file->error.number = 0;
    return code;
}

/* A rule that is broken: V of the network, F of the container. */
static inline qfb_code qfb_refuse_(
    qfb_file *file, const char *rule, const char *place, uint64_t index, const char *what)
{
    return qfb_fail_(file, rule[0] == 'V' ? QFB_INVALID : QFB_BROKEN, rule, place, index, what);
}

/* The last failure is about what this reader does not know or have. */
static inline qfb_code qfb_unknown_(qfb_file *file, const char *name, uint64_t number)
{
    file->error.name = name, file->error.number = number;
    return file->error.code;
}

/* ---- Bytes: SHA-256 (FIPS 180-4) ---- */

typedef struct {
    uint32_t state[8];
    uint64_t size;
    uint8_t block[64];
} qfb_sha256_;

static inline uint32_t qfb_rotate_(uint32_t x, int n) { return x >> n | x << (32 - n); }

static inline void qfb_sha256_block_(uint32_t *state, const uint8_t *p)
{
    static const uint32_t k[64] = {
        0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4, 0xab1c5ed5, 0xd807aa98,
        0x12835b01, 0x243185be, 0x550c7dc3, 0x72be5d74, 0x80deb1fe, 0x9bdc06a7, 0xc19bf174, 0xe49b69c1, 0xefbe4786,
        0x0fc19dc6, 0x240ca1cc, 0x2de92c6f, 0x4a7484aa, 0x5cb0a9dc, 0x76f988da, 0x983e5152, 0xa831c66d, 0xb00327c8,
        0xbf597fc7, 0xc6e00bf3, 0xd5a79147, 0x06ca6351, 0x14292967, 0x27b70a85, 0x2e1b2138, 0x4d2c6dfc, 0x53380d13,
        0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85, 0xa2bfe8a1, 0xa81a664b, 0xc24b8b70, 0xc76c51a3, 0xd192e819,
        0xd6990624, 0xf40e3585, 0x106aa070, 0x19a4c116, 0x1e376c08, 0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a,
        0x5b9cca4f, 0x682e6ff3, 0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208, 0x90befffa, 0xa4506ceb, 0xbef9a3f7,
        0xc67178f2};
    uint32_t w[64], v[8];
    int i;
    for (i = 0; i < 16; i++)
        w[i] = (uint32_t)p[4 * i] << 24 | (uint32_t)p[4 * i + 1] << 16 | (uint32_t)p[4 * i + 2] << 8 | p[4 * i + 3];
    for (; i < 64; i++) {
        uint32_t a = w[i - 15], b = w[i - 2];
        w[i] = w[i - 16] + (qfb_rotate_(a, 7) ^ qfb_rotate_(a, 18) ^ a >> 3) + w[i - 7] +
               (qfb_rotate_(b, 17) ^ qfb_rotate_(b, 19) ^ b >> 10);
    }
    memcpy(v, state, sizeof v);
    for (i = 0; i < 64; i++) {
        uint32_t a = v[0], e = v[4];
        uint32_t one = v[7] + (qfb_rotate_(e, 6) ^ qfb_rotate_(e, 11) ^ qfb_rotate_(e, 25)) + ((e & v[5]) ^ (~e & v[6])) +
                       k[i] + w[i];
        uint32_t two = (qfb_rotate_(a, 2) ^ qfb_rotate_(a, 13) ^ qfb_rotate_(a, 22)) +
                       ((a & v[1]) ^ (a & v[2]) ^ (v[1] & v[2]));
        memmove(v + 1, v, 7 * sizeof *v);
        v[4] += one, v[0] = one + two;
    }
    for (i = 0; i < 8; i++)
        state[i] += v[i];
}

static inline void qfb_sha256_begin_(qfb_sha256_ *hash)
{
    static const uint32_t first[8] = {0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a,
                                      0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19};
    memcpy(hash->state, first, sizeof first);
    hash->size = 0;
}

static inline void qfb_sha256_add_(qfb_sha256_ *hash, const uint8_t *p, uint64_t size)
{
    size_t used = hash->size % 64;
    hash->size += size;
    while (size) {
        if (!used && size >= 64) {
            qfb_sha256_block_(hash->state, p);
            p += 64, size -= 64;
        } else {
            size_t part = 64 - used < size ? 64 - used : (size_t)size;
            memcpy(hash->block + used, p, part);
            p += part, size -= part, used = (used + part) % 64;
            if (!used)
                qfb_sha256_block_(hash->state, hash->block);
        }
    }
}

/* Whether the digest of all that was added begins with these `size` bytes, at most 32. */
static inline int qfb_sha256_begins_(qfb_sha256_ *hash, const uint8_t *wanted, size_t size)
{
    uint8_t end[72] = {0x80}, digest[32];
    uint64_t bits = hash->size * 8;
    size_t pad = 64 - (hash->size + 8) % 64, i;
    for (i = 0; i < 8; i++)
        end[pad + i] = (uint8_t)(bits >> (56 - 8 * i));
    qfb_sha256_add_(hash, end, pad + 8);
    for (i = 0; i < 32; i++)
        digest[i] = (uint8_t)(hash->state[i / 4] >> (24 - 8 * (i % 4)));
    return !memcmp(digest, wanted, size);
}

/* Whether it is `wanted`, 32 bytes. */
static inline int qfb_sha256_is_(qfb_sha256_ *hash, const uint8_t *wanted)
{
    return qfb_sha256_begins_(hash, wanted, 32);
}

/* ---- Structure: the schema, as tables that drive the walk: qfb.fbs, field by field ---- */

enum { QFB_SCALAR_, QFB_STRUCT_, QFB_STRING_, QFB_TABLE_, QFB_SCALARS_, QFB_STRINGS_, QFB_TABLES_ };
enum {
    QFB_T_ARRAY_, QFB_T_ATTRIBUTE_, QFB_T_BUFFER_, QFB_T_GRAPH_, QFB_T_PAIR_, QFB_T_MODEL_, QFB_T_NODE_,
    QFB_T_NUMBERS_, QFB_T_OBSERVED_, QFB_T_PROOF_, QFB_T_QUANTIZATION_, QFB_T_LEVEL_, QFB_T_SHARD_, QFB_T_TENSOR_,
    QFB_T_VALUE_, QFB_T_VECTOR_
};

/* Numbers of the fields that are read one by one. Numbers have the first fields of an Array, a SecondLevel those of a
 * Quantization. */
enum { QFB_ARRAY_DTYPE_, QFB_ARRAY_SHAPE_, QFB_ARRAY_BYTES_, QFB_ARRAY_BUFFER_, QFB_ARRAY_QUANTIZATION_ };
enum { QFB_ATTRIBUTE_TYPE_ = 1, QFB_ATTRIBUTE_INT_, QFB_ATTRIBUTE_FLOAT_, QFB_ATTRIBUTE_STRING_, QFB_ATTRIBUTE_INTS_ };
enum { QFB_BUFFER_OFFSET_, QFB_BUFFER_SIZE_, QFB_BUFFER_DIGEST_ };
enum { QFB_GRAPH_TENSORS_, QFB_GRAPH_NODES_, QFB_GRAPH_INPUTS_, QFB_GRAPH_OUTPUTS_, QFB_GRAPH_NAME_ };
enum {
    QFB_MODEL_MINOR_, QFB_MODEL_FEATURES_, QFB_MODEL_GRAPH_, QFB_MODEL_BUFFERS_, QFB_MODEL_PRODUCER_,
    QFB_MODEL_ENGINE_, QFB_MODEL_SOURCE_, QFB_MODEL_METADATA_, QFB_MODEL_VECTORS_, QFB_MODEL_SHARDS_
};
enum {
    QFB_NODE_OPERATOR_, QFB_NODE_VERSION_, QFB_NODE_INPUTS_, QFB_NODE_OUTPUTS_, QFB_NODE_ATTRIBUTES_,
    QFB_NODE_RULE_, QFB_NODE_NAME_, QFB_NODE_SCOPE_, QFB_NODE_SOURCE_
};
enum {
    QFB_OBSERVED_OBSERVER_, QFB_OBSERVED_MINIMUM_, QFB_OBSERVED_MAXIMUM_, QFB_OBSERVED_LOW_, QFB_OBSERVED_HIGH_,
    QFB_OBSERVED_SCHEME_
};
enum { QFB_PAIR_KEY_, QFB_PAIR_VALUE_ };
enum { QFB_SHARD_NAME_, QFB_SHARD_SIZE_, QFB_SHARD_DIGEST_ };
enum { QFB_VALUE_SHAPE_, QFB_VALUE_BUFFER_ };
enum { QFB_VECTOR_NAME_, QFB_VECTOR_INPUTS_, QFB_VECTOR_OUTPUTS_, QFB_VECTOR_DIGESTS_ };
enum {
    QFB_Q_BLOCK_, QFB_Q_SCALE_, QFB_Q_ZERO_, QFB_Q_OFFSET_, QFB_Q_TABLE_, QFB_Q_GROUPS_, QFB_Q_MIN_, QFB_Q_MAX_,
    QFB_Q_OBSERVED_, QFB_Q_SCALE_NAME_, QFB_Q_ZERO_NAME_
};
enum {
    QFB_TENSOR_NAME_, QFB_TENSOR_DTYPE_, QFB_TENSOR_SHAPE_, QFB_TENSOR_DIMS_, QFB_TENSOR_BUFFER_,
    QFB_TENSOR_QUANTIZATION_, QFB_TENSOR_ALIASES_
};

typedef struct {
    uint8_t kind, width, of, required; /* bytes of a scalar, or of an element of a vector; what a table is */
} qfb_field_;

typedef struct {
    const qfb_field_ *fields;
    uint32_t count;
} qfb_table_;

static inline qfb_table_ qfb_schema_(int table)
{
    static const qfb_field_ array[] = {
        {QFB_SCALAR_, 1, 0, 0}, {QFB_SCALARS_, 8, 0, 0}, {QFB_SCALARS_, 1, 0, 0}, {QFB_SCALAR_, 4, 0, 0},
        {QFB_TABLE_, 4, QFB_T_LEVEL_, 0}};
    static const qfb_field_ attribute[] = {
        {QFB_STRING_, 4, 0, 1}, {QFB_SCALAR_, 1, 0, 0}, {QFB_SCALAR_, 8, 0, 0}, {QFB_SCALAR_, 8, 0, 0},
        {QFB_STRING_, 4, 0, 0}, {QFB_SCALARS_, 8, 0, 0}, {QFB_SCALARS_, 8, 0, 0}, {QFB_STRINGS_, 4, 0, 0}};
    static const qfb_field_ buffer[] = {{QFB_SCALAR_, 8, 0, 0}, {QFB_SCALAR_, 8, 0, 0}, {QFB_STRUCT_, 32, 0, 1}};
    static const qfb_field_ graph[] = {
        {QFB_TABLES_, 4, QFB_T_TENSOR_, 1}, {QFB_TABLES_, 4, QFB_T_NODE_, 1}, {QFB_SCALARS_, 4, 0, 1},
        {QFB_SCALARS_, 4, 0, 1}, {QFB_STRING_, 4, 0, 0}};
    static const qfb_field_ pair[] = {{QFB_STRING_, 4, 0, 1}, {QFB_STRING_, 4, 0, 1}};
    static const qfb_field_ model[] = {
        {QFB_SCALAR_, 4, 0, 0}, {QFB_STRINGS_, 4, 0, 0}, {QFB_TABLE_, 4, QFB_T_GRAPH_, 1},
        {QFB_TABLES_, 4, QFB_T_BUFFER_, 1}, {QFB_STRING_, 4, 0, 0}, {QFB_STRING_, 4, 0, 0},
        {QFB_TABLES_, 4, QFB_T_PAIR_, 0}, {QFB_TABLES_, 4, QFB_T_PAIR_, 0}, {QFB_TABLES_, 4, QFB_T_VECTOR_, 0},
        {QFB_TABLES_, 4, QFB_T_SHARD_, 0}};
    static const qfb_field_ node[] = {
        {QFB_STRING_, 4, 0, 1}, {QFB_SCALAR_, 4, 0, 0}, {QFB_SCALARS_, 4, 0, 1}, {QFB_SCALARS_, 4, 0, 1},
        {QFB_TABLES_, 4, QFB_T_ATTRIBUTE_, 0}, {QFB_STRING_, 4, 0, 0}, {QFB_STRING_, 4, 0, 0}, {QFB_STRING_, 4, 0, 0},
        {QFB_STRING_, 4, 0, 0}, {QFB_TABLE_, 4, QFB_T_PROOF_, 0}};
    static const qfb_field_ numbers[] = {
        {QFB_SCALAR_, 1, 0, 0}, {QFB_SCALARS_, 8, 0, 0}, {QFB_SCALARS_, 1, 0, 0}, {QFB_SCALAR_, 4, 0, 0}};
    static const qfb_field_ observed[] = {
        {QFB_STRING_, 4, 0, 1}, {QFB_SCALARS_, 8, 0, 1}, {QFB_SCALARS_, 8, 0, 1}, {QFB_SCALAR_, 8, 0, 0},
        {QFB_SCALAR_, 8, 0, 0}, {QFB_STRING_, 4, 0, 0}};
    static const qfb_field_ proof[] = {
        {QFB_SCALARS_, 4, 0, 1}, {QFB_SCALARS_, 4, 0, 1}, {QFB_STRING_, 4, 0, 0}, {QFB_SCALARS_, 8, 0, 0},
        {QFB_SCALAR_, 4, 0, 0}};
    static const qfb_field_ quantization[] = {
        {QFB_SCALARS_, 8, 0, 0}, {QFB_TABLE_, 4, QFB_T_ARRAY_, 1}, {QFB_TABLE_, 4, QFB_T_NUMBERS_, 0},
        {QFB_TABLE_, 4, QFB_T_ARRAY_, 0}, {QFB_TABLE_, 4, QFB_T_NUMBERS_, 0}, {QFB_TABLE_, 4, QFB_T_NUMBERS_, 0},
        {QFB_SCALAR_, 8, 0, 0}, {QFB_SCALAR_, 8, 0, 0}, {QFB_TABLE_, 4, QFB_T_OBSERVED_, 0}, {QFB_STRING_, 4, 0, 0},
        {QFB_STRING_, 4, 0, 0}};
    static const qfb_field_ level[] = {
        {QFB_SCALARS_, 8, 0, 0}, {QFB_TABLE_, 4, QFB_T_NUMBERS_, 1}, {QFB_TABLE_, 4, QFB_T_NUMBERS_, 0},
        {QFB_TABLE_, 4, QFB_T_NUMBERS_, 0}, {QFB_TABLE_, 4, QFB_T_NUMBERS_, 0}};
    static const qfb_field_ shard[] = {{QFB_STRING_, 4, 0, 1}, {QFB_SCALAR_, 8, 0, 0}, {QFB_STRUCT_, 32, 0, 1}};
    static const qfb_field_ tensor[] = {
        {QFB_STRING_, 4, 0, 1}, {QFB_SCALAR_, 1, 0, 0}, {QFB_SCALARS_, 8, 0, 0}, {QFB_STRINGS_, 4, 0, 0},
        {QFB_SCALAR_, 4, 0, 0}, {QFB_TABLE_, 4, QFB_T_QUANTIZATION_, 0}, {QFB_STRINGS_, 4, 0, 0}};
    static const qfb_field_ value[] = {{QFB_SCALARS_, 8, 0, 1}, {QFB_SCALAR_, 4, 0, 0}};
    static const qfb_field_ vector[] = {
        {QFB_STRING_, 4, 0, 0}, {QFB_TABLES_, 4, QFB_T_VALUE_, 1}, {QFB_TABLES_, 4, QFB_T_VALUE_, 1},
        {QFB_SCALARS_, 1, 0, 0}};
    static const qfb_table_ tables[] = {
        {array, 5}, {attribute, 8}, {buffer, 3}, {graph, 5}, {pair, 2}, {model, 10}, {node, 10}, {numbers, 4},
        {observed, 6}, {proof, 5}, {quantization, 11}, {level, 5}, {shard, 3}, {tensor, 7}, {value, 2}, {vector, 4}};
    return tables[table];
}

/* ---- Structure: the walk over all offsets (rule F6) ---- */

enum { QFB_REPETITIONS_ = 64, QFB_REMEMBERED_ = 256 };

typedef struct {
    qfb_file *file;
    uint64_t budget; /* bytes that may still be walked over: what is shared can be met again and again */
    struct {
        uint64_t key;
        int64_t least, most;
    } seen[QFB_REMEMBERED_]; /* shared strings and tables that were found good; shared arrays, with their range */
} qfb_walk_;

static inline qfb_code qfb_broken_(qfb_file *file, uint64_t at, const char *what)
{
    return qfb_refuse_(file, "F6", "byte", at, what);
}

static inline qfb_code qfb_spend_(qfb_walk_ *walk, uint64_t bytes, uint32_t at)
{
    if (bytes > walk->budget)
        return qfb_broken_(walk->file, at, "the same tables, vectors, strings or data are referred to too often");
    walk->budget -= bytes;
    return QFB_OK;
}

/* Where the offset at a position leads: inside the FlatBuffer, aligned, with room for four bytes. */
static inline qfb_code qfb_target_(qfb_file *file, uint32_t at, uint32_t *target)
{
    uint64_t to = (uint64_t)at + qfb_u32_(file->bytes + at);
    if (to == at || to < file->start || to > file->meta_size - 4)
        return qfb_broken_(file, at, "an offset leads outside the metadata");
    if (to % 4)
        return qfb_broken_(file, at, "an offset leads to a byte that is not aligned");
    *target = (uint32_t)to;
    return QFB_OK;
}

/* A vector of elements of `width` bytes ends inside the metadata. */
static inline qfb_code qfb_walk_vector_(qfb_walk_ *walk, uint32_t at, uint32_t width)
{
    uint32_t count = qfb_u32_(walk->file->bytes + at);
    if (count > (walk->file->meta_size - at - 4) / width)
        return qfb_broken_(walk->file, at, "more elements than fit into the metadata");
    if (count && (at + 4) % width)
        return qfb_broken_(walk->file, at, "a vector is not aligned");
    return qfb_spend_(walk, 4 + (uint64_t)count * width, at);
}

/* Whether bytes are UTF-8: no overlong forms, no surrogates, nothing beyond U+10FFFF. */
static inline int qfb_is_utf8_(const uint8_t *p, uint32_t size)
{
    uint32_t i = 0, more, code;
    while (i < size) {
        uint32_t first = p[i++];
        if (first < 0x80)
            continue;
        if (first < 0xc2 || first > 0xf4)
            return 0;
        more = first < 0xe0 ? 1 : first < 0xf0 ? 2 : 3;
        code = first & (0x3fu >> more);
        if (size - i < more)
            return 0;
        for (; more; more--, i++) {
            if ((p[i] & 0xc0) != 0x80)
                return 0;
            code = code << 6 | (p[i] & 0x3fu);
        }
        if ((first == 0xe0 && code < 0x800) || (first == 0xf0 && code < 0x10000) || code > 0x10ffff ||
            (code >= 0xd800 && code < 0xe000))
            return 0;
    }
    return 1;
}

/* Where what is shared is remembered. Positions often are a fixed distance apart, so it is a multiplicative hash. */
static inline uint32_t qfb_place_(uint64_t key) { return (uint32_t)(key * 0x9e3779b97f4a7c15u >> 32) % QFB_REMEMBERED_; }

/* Whether this was met before; from now on it was. */
static inline int qfb_is_known_(qfb_walk_ *walk, uint32_t kind, uint32_t at)
{
    uint64_t key = (uint64_t)(kind + 1) << 32 | at;
    int is_known = walk->seen[qfb_place_(key)].key == key;
    walk->seen[qfb_place_(key)].key = key;
    return is_known;
}

static inline qfb_code qfb_walk_string_(qfb_walk_ *walk, uint32_t at)
{
    qfb_file *file = walk->file;
    uint32_t count;
    if (qfb_walk_vector_(walk, at, 1)) /* a known one costs its bytes again: whoever uses it compares all of them */
        return file->error.code;
    if (qfb_is_known_(walk, 255, at))
        return QFB_OK;
    count = qfb_u32_(file->bytes + at);
    if (count >= file->meta_size - at - 4 || file->bytes[at + 4 + count])
        return qfb_broken_(file, at, "a string does not end with a zero byte");
    if (!qfb_is_utf8_(file->bytes + at + 4, count))
        return qfb_broken_(file, at, "a string is not UTF-8");
    if (count && memchr(file->bytes + at + 4, 0, count))
        return qfb_refuse_(file, "V36", "byte", at, "a string contains a zero byte");
    return QFB_OK;
}

static inline qfb_code qfb_walk_table_(qfb_walk_ *walk, int table, uint32_t at);

/* A vector of offsets, and all that they lead to. */
static inline qfb_code qfb_walk_offsets_(qfb_walk_ *walk, const qfb_field_ *field, uint32_t at)
{
    qfb_file *file = walk->file;
    uint32_t i, count, target;
    if (qfb_walk_vector_(walk, at, 4))
        return file->error.code;
    count = qfb_u32_(file->bytes + at);
    for (i = 0; i < count; i++)
        if (qfb_target_(file, at + 4 + 4 * i, &target) || (field->kind == QFB_STRINGS_
                                                               ? qfb_walk_string_(walk, target)
                                                               : qfb_walk_table_(walk, field->of, target)))
            return file->error.code;
    return QFB_OK;
}

static inline qfb_code qfb_walk_field_(qfb_walk_ *walk, const qfb_field_ *field, uint32_t at)
{
    uint32_t target;
    if (field->kind == QFB_SCALAR_ || field->kind == QFB_STRUCT_)
        return QFB_OK;
    if (qfb_target_(walk->file, at, &target))
        return walk->file->error.code;
    switch (field->kind) {
    case QFB_STRING_: return qfb_walk_string_(walk, target);
    case QFB_TABLE_: return qfb_is_known_(walk, field->of, target) ? QFB_OK : qfb_walk_table_(walk, field->of, target);
    case QFB_SCALARS_: return qfb_walk_vector_(walk, target, field->width);
    default: return qfb_walk_offsets_(walk, field, target);
    }
}

/* A table and all below it. The schema is not recursive: it is seven tables deep. */
static inline qfb_code qfb_walk_table_(qfb_walk_ *walk, int table, uint32_t at)
{
    qfb_file *file = walk->file;
    const uint8_t *bytes = file->bytes;
    qfb_table_ schema = qfb_schema_(table);
    int64_t vtable = (int64_t)at - qfb_signed_(qfb_u32_(bytes + at), 32);
    uint32_t v, length, size, i;
    if (vtable < (int64_t)file->start || vtable > (int64_t)file->meta_size - 4 || vtable % 2)
        return qfb_broken_(file, at, "a vtable has an invalid position");
    v = (uint32_t)vtable, length = qfb_u16_(bytes + v), size = qfb_u16_(bytes + v + 2);
    if (length < 4 || length % 2 || length > file->meta_size - v || size < 4 || size > file->meta_size - at)
        return qfb_broken_(file, v, "a vtable has invalid sizes");
    if (qfb_spend_(walk, size, at))
        return file->error.code;
    for (i = 0; i < schema.count; i++) {
        const qfb_field_ *field = &schema.fields[i];
        uint32_t width = field->kind == QFB_SCALAR_ || field->kind == QFB_STRUCT_ ? field->width : 4;
        uint32_t offset = 6 + 2 * i <= length ? qfb_u16_(bytes + v + 4 + 2 * i) : 0;
        if (!offset && field->required)
            return qfb_broken_(file, at, "a required field is missing");
        if (!offset)
            continue;
        if (offset < 4 || offset + width > size)
            return qfb_broken_(file, v + 4 + 2 * i, "a field lies outside its table");
        if (field->kind != QFB_STRUCT_ && (at + offset) % width)
            return qfb_broken_(file, at + offset, "a field is not aligned");
        if (qfb_walk_field_(walk, field, at + offset))
            return file->error.code;
    }
    return QFB_OK;
}

/* ---- Structure: fields of tables that the walk has found good ---- */

static inline uint32_t qfb_at_(const qfb_file *file, uint32_t table, int field)
{ /* where the field lies, or 0 */
    uint32_t v = (uint32_t)((int64_t)table - qfb_signed_(qfb_u32_(file->bytes + table), 32));
    uint32_t slot = 4 + 2 * (uint32_t)field, offset = 0;
    if (slot + 2 <= qfb_u16_(file->bytes + v))
        offset = qfb_u16_(file->bytes + v + slot);
    return offset ? table + offset : 0;
}
static inline uint32_t qfb_to_(const qfb_file *file, uint32_t table, int field)
{ /* where what the field refers to lies, or 0 */
    uint32_t at = qfb_at_(file, table, field);
    return at ? at + qfb_u32_(file->bytes + at) : 0;
}
static inline uint32_t qfb_uint_(const qfb_file *file, uint32_t table, int field, uint32_t absent)
{
    uint32_t at = qfb_at_(file, table, field);
    return at ? qfb_u32_(file->bytes + at) : absent;
}
static inline uint32_t qfb_ubyte_(const qfb_file *file, uint32_t table, int field, uint32_t absent)
{
    uint32_t at = qfb_at_(file, table, field);
    return at ? file->bytes[at] : absent;
}
static inline uint64_t qfb_ulong_(const qfb_file *file, uint32_t table, int field)
{
    uint32_t at = qfb_at_(file, table, field);
    return at ? qfb_u64_(file->bytes + at) : 0;
}
static inline qfb_string qfb_string_(const qfb_file *file, uint32_t table, int field)
{
    return qfb_string_at_(file->bytes, qfb_to_(file, table, field));
}
static inline qfb_list qfb_vector_(const qfb_file *file, uint32_t at, uint8_t width)
{
    qfb_list list;
    list.bytes = file->bytes, list.width = width, list.present = at != 0;
    list.at = at + 4, list.count = at ? qfb_u32_(file->bytes + at) : 0;
    return list;
}
static inline qfb_list qfb_list_(const qfb_file *file, uint32_t table, int field, uint8_t width)
{
    return qfb_vector_(file, qfb_to_(file, table, field), width);
}
static inline uint32_t qfb_count_(const qfb_file *file, uint32_t vector)
{
    return vector ? qfb_u32_(file->bytes + vector) : 0;
}
static inline uint32_t qfb_element_(const qfb_file *file, uint32_t vector, uint32_t index)
{ /* the table at an index of a vector of tables */
    uint32_t at = vector + 4 + 4 * index;
    return at + qfb_u32_(file->bytes + at);
}

/* ---- Values: element types ---- */

typedef struct {
    const char *name; /* as NumPy and ml_dtypes call it */
    uint8_t bits;
    char kind;             /* 'b' bool, 'i' and 'u' integers, 'f' floats */
    int64_t low, high;     /* limits of quantized values; both 0 where nothing is quantized to the type */
} qfb_dtype_info;

/* What an element type is; NULL for a code that is none. */
static inline const qfb_dtype_info *qfb_dtype_of(uint32_t code)
{
    static const qfb_dtype_info types[] = {
        {"bool", 8, 'b', 0, 0}, {"int8", 8, 'i', -128, 127}, {"uint8", 8, 'u', 0, 255},
        {"int16", 16, 'i', -32768, 32767}, {"uint16", 16, 'u', 0, 65535},
        {"int32", 32, 'i', -2147483647 - 1, 2147483647}, {"uint32", 32, 'u', 0, 4294967295},
        {"int64", 64, 'i', -INT64_MAX - 1, INT64_MAX}, {"uint64", 64, 'u', 0, INT64_MAX},
        {"float16", 16, 'f', 0, 0}, {"bfloat16", 16, 'f', 0, 0}, {"float32", 32, 'f', 0, 0},
        {"float64", 64, 'f', 0, 0}, {"int4", 4, 'i', -8, 7}, {"uint4", 4, 'u', 0, 15}, {"int2", 2, 'i', -2, 1},
        {"uint2", 2, 'u', 0, 3}, {"float8_e4m3fn", 8, 'f', -448, 448}, {"float8_e5m2", 8, 'f', -57344, 57344},
        {"float8_e4m3fnuz", 8, 'f', -240, 240}, {"float8_e5m2fnuz", 8, 'f', -57344, 57344},
        {"float8_e8m0fnu", 8, 'f', 0, 0}, {"float4_e2m1fn", 4, 'f', -6, 6}};
    return code >= 1 && code <= sizeof types / sizeof *types ? &types[code - 1] : NULL;
}

static inline int qfb_is_integer_type(uint32_t code)
{
    const qfb_dtype_info *info = qfb_dtype_of(code);
    return info && (info->kind == 'i' || info->kind == 'u');
}

/* The integer (or bool) at an index of an array of the file; uint64 beyond 2^63 - 1 becomes negative. */
static inline int64_t qfb_stored(const uint8_t *data, qfb_dtype dtype, uint64_t index)
{
    const qfb_dtype_info *info = qfb_dtype_of(dtype);
    uint32_t per_byte, code;
    switch (info->bits) {
    case 8: return info->kind == 'i' ? qfb_signed_(data[index], 8) : data[index];
    case 16: code = qfb_u16_(data + 2 * index); break;
    case 32: code = qfb_u32_(data + 4 * index); break;
    case 64: return qfb_signed_(qfb_u64_(data + 8 * index), 64);
    default:
        per_byte = 8u / info->bits;
        code = (uint32_t)data[index / per_byte] >> (info->bits * (index % per_byte));
        code &= (1u << info->bits) - 1;
    }
    return info->kind == 'i' ? qfb_signed_(code, info->bits) : (int64_t)code;
}

/* The float at an index of an array of the file: the bits of the double that it equals. */
static inline uint64_t qfb_float_bits(const uint8_t *data, qfb_dtype dtype, uint64_t index)
{
    static const struct {
        uint8_t exponent, fraction, bias;
        char special; /* 'i' infinities and NaNs, as in IEEE 754; 'n' a NaN of all ones; 'z' a NaN instead of -0 */
    } forms[] = {{5, 10, 15, 'i'}, {8, 7, 127, 'i'}, {8, 23, 127, 'i'}, {4, 3, 7, 'n'},
                 {5, 2, 15, 'i'},  {4, 3, 8, 'z'},   {5, 2, 16, 'z'},   {2, 1, 1, ' '}};
    const uint64_t nan = (uint64_t)0x7ff8 << 48;
    uint64_t code = (uint64_t)qfb_stored(data, dtype, index), one, sign, fraction;
    int form = dtype <= QFB_FLOAT32 ? (int)dtype - QFB_FLOAT16 : 3 + (int)dtype - QFB_FLOAT8_E4M3FN;
    int exponent, most, width;
    if (dtype == QFB_FLOAT64)
        return code;
    if (dtype == QFB_FLOAT8_E8M0FNU)
        return code == 255 ? nan : (code + 1023 - 127) << 52;
    form = dtype == QFB_FLOAT4_E2M1FN ? 7 : form;
    width = forms[form].fraction, one = (uint64_t)1 << width, most = (1 << forms[form].exponent) - 1;
    fraction = code & (one - 1), exponent = (int)(code >> width) & most;
    sign = code >> width >> forms[form].exponent << 63;
    if (exponent == most && forms[form].special == 'i')
        return sign | (uint64_t)0x7ff << 52 | fraction << (52 - width);
    if (exponent == most && forms[form].special == 'n' && fraction == one - 1)
        return nan;
    if (!exponent && !fraction)
        return sign && forms[form].special == 'z' ? nan : sign;
    if (!exponent)
        for (exponent = 1; fraction < one; exponent--)
            fraction <<= 1;
    return sign | (uint64_t)(exponent + 1023 - forms[form].bias) << 52 | (fraction & (one - 1)) << (52 - width);
}

/* An integer between -2^53 and 2^53: the bits of the double that it equals. */
static inline uint64_t qfb_whole_bits_(int64_t x)
{
    uint64_t size = x < 0 ? 0 - (uint64_t)x : (uint64_t)x, exponent = 1023 + 52;
    if (!x)
        return 0;
    for (; !(size >> 52); exponent--)
        size <<= 1;
    return (uint64_t)(x < 0) << 63 | exponent << 52 | (size & (((uint64_t)1 << 52) - 1));
}

/* Whether the double with the bits of that key is greater than 0 as float32, and whether it is infinite. */
static inline int qfb_is_positive_(int64_t key) { return key > INT64_C(873) << 52; }
static inline int qfb_is_infinite_(int64_t key)
{
    const int64_t size = key < 0 ? -key : key, one = INT64_C(1) << 52;
    return size >= 1151 * one - one / (1 << 24);
}

/* An integer for each element, in the order of their values: integers and bools themselves, floats by the bits of a double. */
static inline int64_t qfb_order_(uint64_t bits)
{
    int64_t size = (int64_t)(bits & INT64_MAX);
    return bits >> 63 ? -size : size;
}
static inline int64_t qfb_key_(const uint8_t *data, qfb_dtype dtype, uint64_t index)
{
    return qfb_dtype_of(dtype)->kind != 'f' ? qfb_stored(data, dtype, index)
                                            : qfb_order_(qfb_float_bits(data, dtype, index));
}

static inline int qfb_is_nan_(uint64_t bits) { return (bits & INT64_MAX) > (uint64_t)0x7ff << 52; }
static inline int qfb_is_finite_(int64_t order)
{
    const int64_t infinite = INT64_C(0x7ff) << 52;
    return -infinite < order && order < infinite;
}

/* The least and the greatest key of `count` elements; `finite`: of those that are. Buffers may be shared: each is read
 * once for each type that it has. */
static inline qfb_code qfb_range_(
    qfb_walk_ *walk, const qfb_array *array, qfb_dtype dtype, uint64_t count, int finite, int64_t *least, int64_t *most)
{
    uint32_t kind = 256 + 8 * (uint32_t)dtype + 4 * (uint32_t)finite + (uint32_t)(count % 4);
    uint32_t place = qfb_place_((uint64_t)(kind + 1) << 32 | array->buffer);
    uint64_t i;
    *least = INT64_MAX, *most = INT64_MIN;
    if (array->buffer != QFB_INLINE && qfb_is_known_(walk, kind, array->buffer)) {
        *least = walk->seen[place].least, *most = walk->seen[place].most;
        return QFB_OK;
    }
    if (qfb_spend_(walk, array->size, 0))
        return walk->file->error.code;
    for (i = 0; i < count; i++) {
        int64_t key = qfb_key_(array->data, dtype, i);
        if (finite && qfb_dtype_of(dtype)->kind == 'f' && !qfb_is_finite_(key))
            continue;
        *least = key < *least ? key : *least, *most = key > *most ? key : *most;
    }
    walk->seen[place].least = *least, walk->seen[place].most = *most;
    return QFB_OK;
}

/* ---- Values: the numbers of a quantization ---- */

/* The bits of the double that the stored number of a block is. */
static inline uint64_t qfb_number_bits(const qfb_numbers *numbers, uint64_t block)
{
    uint64_t at = numbers->shape.count ? block : 0;
    return qfb_is_integer_type(numbers->dtype) ? qfb_whole_bits_(qfb_stored(numbers->array.data, numbers->dtype, at))
                                               : qfb_float_bits(numbers->array.data, numbers->dtype, at);
}

/* The scale of a block, if it is not quantized itself. Of per-channel quantization the blocks are the slices. */
static inline double qfb_scale(const qfb_quantization *q, uint64_t block)
{
    uint64_t bits = qfb_number_bits(&q->scale, block);
    double value;
    memcpy(&value, &bits, 8);
    return value;
}

/* The zero point of a block, if zero points are integers. */
static inline int64_t qfb_zero_point(const qfb_quantization *q, uint64_t block)
{
    return qfb_stored(q->zero_point.array.data, q->zero_point.dtype, q->zero_point.shape.count ? block : 0);
}

/* The block that an element belongs to, of an array of that shape; `element` counts in row-major order. */
static inline uint64_t qfb_block_of(const qfb_quantization *q, const qfb_list *shape, uint64_t element)
{
    uint64_t found = 0, step = 1;
    uint32_t i;
    for (i = shape->count; i-- > 0;) {
        uint64_t size = (uint64_t)qfb_integer(shape, i), at = element % size, block, count;
        element /= size;
        if (i >= q->block.count)
            continue;
        block = (uint64_t)qfb_integer(&q->block, i), count = (uint64_t)qfb_integer(&q->scale.shape, i);
        if (block > 1 && q->group_index.dtype)
            at = (uint64_t)qfb_stored(q->group_index.array.data, q->group_index.dtype, at);
        else
            at = block ? at / block : 0;
        found += (at < count ? at : 0) * step; /* a group index in a buffer may not have been checked */
        step *= count;
    }
    return found;
}

/* The dimension that has a scale for each slice; -1: one scale for all; -2: there are blocks. */
static inline int64_t qfb_channel_axis(const qfb_quantization *q)
{
    uint32_t i;
    for (i = 0; i < q->block.count; i++)
        if (qfb_integer(&q->block, i) != (i + 1 == q->block.count))
            return -2;
    return (int64_t)q->block.count - 1;
}

/* ---- Reading: buffers and shards ---- */

static inline qfb_code qfb_invalid_(qfb_file *file, const char *rule, uint32_t tensor, const char *what)
{
    return qfb_refuse_(file, rule, "tensor", tensor, what);
}

/* The files that hold the data, if this one does not, and their names, which lead nowhere but to its folder. */
static inline uint32_t qfb_shard_count(const qfb_file *file) { return qfb_count_(file, file->stated); }
static inline qfb_string qfb_shard_name(const qfb_file *file, uint32_t index)
{
    return qfb_string_(file, qfb_element_(file, file->stated, index), QFB_SHARD_NAME_);
}

/* The shard that the byte at an offset of the data is in; the last one at its end. */
static inline const qfb_shard *qfb_shard_at_(const qfb_file *file, uint64_t offset)
{
    uint32_t low = 0, high = qfb_shard_count(file) - 1;
    while (low < high) {
        uint32_t middle = low + (high - low + 1) / 2;
        if (file->shards[middle].begin > offset)
            high = middle - 1;
        else
            low = middle;
    }
    return file->shards + low;
}

/* The data from an offset on. */
static inline const uint8_t *qfb_data_(const qfb_file *file, uint64_t offset)
{
    const qfb_shard *shard;
    if (!file->shards)
        return file->data + offset;
    shard = qfb_shard_at_(file, offset);
    return (const uint8_t *)shard->bytes + (offset - shard->begin);
}

static inline qfb_code qfb_get_buffer(qfb_file *file, uint32_t index, qfb_array *array)
{
    uint32_t at;
    if (index >= qfb_count_(file, file->buffers))
        return qfb_fail_(file, QFB_MISSING, "F7", "buffer", index, "there is no such buffer");
    at = qfb_element_(file, file->buffers, index);
    array->data = qfb_data_(file, qfb_ulong_(file, at, QFB_BUFFER_OFFSET_));
    array->size = qfb_ulong_(file, at, QFB_BUFFER_SIZE_), array->buffer = index;
    return QFB_OK;
}

/* The elements of an array; UINT64_MAX if they are 2^60 or more, or a size is negative. */
static inline uint64_t qfb_elements_(const qfb_list *shape)
{
    uint64_t product = 1;
    int is_empty = 0;
    uint32_t i;
    for (i = 0; i < shape->count; i++) {
        if (qfb_integer(shape, i) < 0)
            return UINT64_MAX;
        is_empty |= !qfb_integer(shape, i);
    }
    for (i = 0; i < shape->count && !is_empty; i++) {
        uint64_t size = (uint64_t)qfb_integer(shape, i);
        if (size > (((uint64_t)1 << 60) - 1) / product)
            return UINT64_MAX;
        product *= size;
    }
    return is_empty ? 0 : product;
}

/* The bytes that they need. */
static inline uint64_t qfb_needed_(const qfb_list *shape, uint32_t bits)
{
    uint64_t count = qfb_elements_(shape);
    return count == UINT64_MAX ? count : bits < 8 ? (count * bits + 7) / 8 : count * (bits / 8);
}

/* ---- Reading: quantizations ---- */

/* The numbers that the Array at that position is, or, without a second level, the Numbers; all 0 if there are none. */
static inline qfb_code qfb_read_numbers_(
    qfb_file *file, uint32_t index, uint32_t at, int is_array, qfb_numbers *numbers)
{
    uint32_t inside;
    if (!at)
        return QFB_OK;
    numbers->dtype = (qfb_dtype)qfb_ubyte_(file, at, QFB_ARRAY_DTYPE_, 0);
    numbers->shape = qfb_list_(file, at, QFB_ARRAY_SHAPE_, 8);
    numbers->count = qfb_elements_(&numbers->shape);
    numbers->second_level = is_array ? qfb_to_(file, at, QFB_ARRAY_QUANTIZATION_) : 0;
    inside = qfb_to_(file, at, QFB_ARRAY_BYTES_);
    if (!qfb_dtype_of(numbers->dtype)) {
        qfb_invalid_(file, "V2", index, "the type of the numbers of a quantization is not known");
        return qfb_unknown_(file, "", numbers->dtype);
    }
    if (!inside == !qfb_at_(file, at, QFB_ARRAY_BUFFER_))
        return qfb_invalid_(file, "F12", index, "numbers of a quantization have neither bytes nor a buffer, or both");
    numbers->array.data = file->bytes + inside + 4, numbers->array.size = qfb_count_(file, inside);
    numbers->array.buffer = QFB_INLINE;
    if (!inside && qfb_get_buffer(file, qfb_uint_(file, at, QFB_ARRAY_BUFFER_, 0), &numbers->array))
        return qfb_invalid_(file, "F7", index, "there is no such buffer");
    if (numbers->array.size != qfb_needed_(&numbers->shape, qfb_dtype_of(numbers->dtype)->bits))
        return qfb_invalid_(file, "V20", index, "the bytes of numbers of a quantization do not fit type and shape");
    return QFB_OK;
}

static inline void qfb_read_observed_(const qfb_file *file, uint32_t at, qfb_quantization *q)
{
    q->observer = qfb_string_(file, at, QFB_OBSERVED_OBSERVER_);
    q->qscheme = qfb_string_(file, at, QFB_OBSERVED_SCHEME_);
    q->observed_minimum = qfb_list_(file, at, QFB_OBSERVED_MINIMUM_, 8);
    q->observed_maximum = qfb_list_(file, at, QFB_OBSERVED_MAXIMUM_, 8);
    q->observed_quant_min = qfb_signed_(qfb_ulong_(file, at, QFB_OBSERVED_LOW_), 64);
    q->observed_quant_max = qfb_signed_(qfb_ulong_(file, at, QFB_OBSERVED_HIGH_), 64);
    q->has_observed_range = qfb_at_(file, at, QFB_OBSERVED_LOW_) != 0;
    if (q->has_observed_range != (qfb_at_(file, at, QFB_OBSERVED_HIGH_) != 0))
        q->has_observed_range = 2; /* one without the other: refused */
}

/* Whether a field of a Quantization (level 1) or a SecondLevel (2) is an Array, which may have a second level. */
static inline int qfb_is_array_(int level, int field)
{
    return level == 1 && (field == QFB_Q_SCALE_ || field == QFB_Q_OFFSET_);
}

/* What a Quantization (level 1) and a SecondLevel (2) at that position have in common. */
static inline qfb_code qfb_read_level_(qfb_file *file, uint32_t index, uint32_t at, int level, qfb_quantization *q)
{
    static const uint8_t zero = 0;
    qfb_numbers *all[] = {&q->scale, &q->zero_point, &q->offset, &q->table, &q->group_index};
    int field, last = level == 1 ? QFB_Q_GROUPS_ : QFB_Q_TABLE_;
    q->block = qfb_list_(file, at, QFB_Q_BLOCK_, 8);
    for (field = QFB_Q_SCALE_; field <= last; field++)
        if (qfb_read_numbers_(
                file, index, qfb_to_(file, at, field), qfb_is_array_(level, field), all[field - QFB_Q_SCALE_]))
            return file->error.code;
    if (!q->zero_point.dtype) {
        q->zero_point.dtype = QFB_UINT8, q->zero_point.count = q->zero_point.array.size = 1;
        q->zero_point.array.data = &zero, q->zero_point.array.buffer = QFB_INLINE;
    }
    return QFB_OK;
}

static inline void qfb_no_quantization_(qfb_quantization *q)
{
    memset(q, 0, sizeof *q);
    q->scale_name.text = q->zero_point_name.text = q->observer.text = q->qscheme.text = "";
}

/* The Quantization at that position. */
static inline qfb_code qfb_read_quantization_(qfb_file *file, uint32_t index, uint32_t at, qfb_quantization *q)
{
    uint32_t observed = qfb_to_(file, at, QFB_Q_OBSERVED_);
    q->scale_name = qfb_string_(file, at, QFB_Q_SCALE_NAME_);
    q->zero_point_name = qfb_string_(file, at, QFB_Q_ZERO_NAME_);
    q->quant_min = qfb_signed_(qfb_ulong_(file, at, QFB_Q_MIN_), 64);
    q->quant_max = qfb_signed_(qfb_ulong_(file, at, QFB_Q_MAX_), 64);
    if (observed)
        qfb_read_observed_(file, observed, q);
    if (!qfb_at_(file, at, QFB_Q_MIN_) || !qfb_at_(file, at, QFB_Q_MAX_))
        return qfb_invalid_(file, "F12", index, "a quantization lacks quant_min or quant_max");
    return qfb_read_level_(file, index, at, 1, q);
}

/* How the codes of numbers are quantized that have a second level: block, scale, zero_point, offset, table. */
static inline qfb_code qfb_read_second_(qfb_file *file, uint32_t index, const qfb_numbers *numbers, qfb_quantization *q)
{
    qfb_no_quantization_(q);
    return qfb_read_level_(file, index, numbers->second_level, 2, q);
}
static inline void qfb_second_level(qfb_file *file, const qfb_numbers *numbers, qfb_quantization *q)
{
    qfb_read_second_(file, 0, numbers, q);
}

/* ---- Reading: tensors, nodes, attributes, pairs, test vectors ---- */

static inline qfb_code qfb_read_tensor_(qfb_file *file, uint32_t index, qfb_tensor *tensor)
{
    uint32_t at = qfb_element_(file, file->tensors, index), dtype = qfb_ubyte_(file, at, QFB_TENSOR_DTYPE_, 0);
    uint32_t quantization = qfb_to_(file, at, QFB_TENSOR_QUANTIZATION_);
    memset(tensor, 0, sizeof *tensor);
    qfb_no_quantization_(&tensor->quantization);
    tensor->name = qfb_string_(file, at, QFB_TENSOR_NAME_);
    tensor->shape = qfb_list_(file, at, QFB_TENSOR_SHAPE_, 8);
    tensor->dims = qfb_list_(file, at, QFB_TENSOR_DIMS_, 4);
    tensor->aliases = qfb_list_(file, at, QFB_TENSOR_ALIASES_, 4);
    tensor->is_constant = qfb_at_(file, at, QFB_TENSOR_BUFFER_) != 0;
    tensor->is_quantized = quantization != 0;
    if (!qfb_dtype_of(dtype)) {
        qfb_invalid_(file, "V2", index, "the element type is not known");
        return qfb_unknown_(file, "", dtype);
    }
    tensor->dtype = (qfb_dtype)dtype;
    if (tensor->is_constant && qfb_get_buffer(file, qfb_uint_(file, at, QFB_TENSOR_BUFFER_, 0), &tensor->array))
        return qfb_invalid_(file, "F7", index, "there is no such buffer");
    return quantization ? qfb_read_quantization_(file, index, quantization, &tensor->quantization) : QFB_OK;
}

/* The tensor at an index. Fails only with QFB_MISSING. */
static inline qfb_code qfb_get_tensor(qfb_file *file, uint32_t index, qfb_tensor *tensor)
{
    if (index >= qfb_count_(file, file->tensors))
        return qfb_fail_(file, QFB_MISSING, "", "tensor", index, "there is no such tensor");
    return qfb_read_tensor_(file, index, tensor);
}

static inline uint32_t qfb_tensor_count(const qfb_file *file) { return qfb_count_(file, file->tensors); }
static inline uint32_t qfb_node_count(const qfb_file *file) { return qfb_count_(file, file->nodes); }
static inline uint32_t qfb_buffer_count(const qfb_file *file) { return qfb_count_(file, file->buffers); }
static inline qfb_list qfb_inputs(const qfb_file *file) { return qfb_vector_(file, file->inputs, 4); }
static inline qfb_list qfb_outputs(const qfb_file *file) { return qfb_vector_(file, file->outputs, 4); }
static inline uint32_t qfb_minor_version(const qfb_file *file)
{
    return qfb_uint_(file, file->model, QFB_MODEL_MINOR_, 0);
}
static inline qfb_string qfb_producer(const qfb_file *file)
{
    return qfb_string_(file, file->model, QFB_MODEL_PRODUCER_);
}
static inline qfb_string qfb_engine(const qfb_file *file)
{
    return qfb_string_(file, file->model, QFB_MODEL_ENGINE_);
}
static inline qfb_string qfb_graph_name(const qfb_file *file)
{
    return qfb_string_(file, file->graph, QFB_GRAPH_NAME_);
}

/* The index of the tensor of a name, by binary search; -1 if there is none. */
static inline int64_t qfb_tensor_index(const qfb_file *file, const char *name, size_t size)
{
    uint32_t low = 0, high = size > UINT32_MAX ? 0 : qfb_tensor_count(file);
    qfb_string wanted;
    wanted.text = name, wanted.size = (uint32_t)size;
    while (low < high) {
        uint32_t middle = low + (high - low) / 2;
        int order = qfb_compare(
            qfb_string_(file, qfb_element_(file, file->tensors, middle), QFB_TENSOR_NAME_), wanted);
        if (!order)
            return middle;
        low = order < 0 ? middle + 1 : low, high = order < 0 ? high : middle;
    }
    return -1;
}

/* The tensor of a name, or QFB_MISSING. */
static inline qfb_code qfb_find_tensor(qfb_file *file, const char *name, qfb_tensor *tensor)
{
    int64_t index = qfb_tensor_index(file, name, strlen(name));
    if (index < 0)
        return qfb_fail_(file, QFB_MISSING, "", "file", 0, "there is no tensor with that name");
    return qfb_read_tensor_(file, (uint32_t)index, tensor);
}

/* The node at an index. Fails only with QFB_MISSING. */
static inline qfb_code qfb_get_node(qfb_file *file, uint32_t index, qfb_node *node)
{
    uint32_t at;
    if (index >= qfb_node_count(file))
        return qfb_fail_(file, QFB_MISSING, "", "node", index, "there is no such node");
    at = qfb_element_(file, file->nodes, index);
    node->operator_name = qfb_string_(file, at, QFB_NODE_OPERATOR_);
    node->rule = qfb_string_(file, at, QFB_NODE_RULE_);
    node->name = qfb_string_(file, at, QFB_NODE_NAME_);
    node->scope = qfb_string_(file, at, QFB_NODE_SCOPE_);
    node->source_operator = qfb_string_(file, at, QFB_NODE_SOURCE_);
    node->version = qfb_uint_(file, at, QFB_NODE_VERSION_, 1);
    node->inputs = qfb_list_(file, at, QFB_NODE_INPUTS_, 4);
    node->outputs = qfb_list_(file, at, QFB_NODE_OUTPUTS_, 4);
    node->attributes = qfb_to_(file, at, QFB_NODE_ATTRIBUTES_);
    node->attribute_count = qfb_count_(file, node->attributes);
    return QFB_OK;
}

/* The attribute at an index of a node, which is less than its attribute_count. */
static inline void qfb_get_attribute(const qfb_file *file, const qfb_node *node, uint32_t index, qfb_attribute *a)
{
    uint32_t at = qfb_element_(file, node->attributes, index);
    int lists;
    a->name = qfb_string_(file, at, 0);
    a->type = (qfb_attribute_type)qfb_ubyte_(file, at, QFB_ATTRIBUTE_TYPE_, 0);
    a->integer = qfb_signed_(qfb_ulong_(file, at, QFB_ATTRIBUTE_INT_), 64);
    a->float_bits = qfb_ulong_(file, at, QFB_ATTRIBUTE_FLOAT_);
    a->string = qfb_string_(file, at, QFB_ATTRIBUTE_STRING_);
    lists = a->type > QFB_INTS && a->type <= QFB_STRINGS ? (int)a->type - QFB_INTS : 0;
    a->list = qfb_list_(file, at, QFB_ATTRIBUTE_INTS_ + lists, a->type == QFB_STRINGS ? 4 : 8);
}

/* The attribute of a name. */
static inline qfb_code qfb_find_attribute(qfb_file *file, const qfb_node *node, const char *name, qfb_attribute *a)
{
    uint32_t i;
    for (i = 0; i < node->attribute_count; i++) {
        qfb_get_attribute(file, node, i, a);
        if (qfb_equals(a->name, name))
            return QFB_OK;
    }
    return qfb_fail_(file, QFB_MISSING, "", "file", 0, "the node has no attribute with that name");
}

/* The pairs of `source` (where the model came from) and of `metadata` (the user's own). */
static inline uint32_t qfb_source_count(const qfb_file *file) { return qfb_count_(file, file->sources); }
static inline uint32_t qfb_metadata_count(const qfb_file *file) { return qfb_count_(file, file->metadata); }
static inline void qfb_get_source(const qfb_file *file, uint32_t index, qfb_string *key, qfb_string *value)
{
    uint32_t at = qfb_element_(file, file->sources, index);
    *key = qfb_string_(file, at, QFB_PAIR_KEY_), *value = qfb_string_(file, at, QFB_PAIR_VALUE_);
}
static inline void qfb_get_metadata(const qfb_file *file, uint32_t index, qfb_string *key, qfb_string *value)
{
    uint32_t at = qfb_element_(file, file->metadata, index);
    *key = qfb_string_(file, at, QFB_PAIR_KEY_), *value = qfb_string_(file, at, QFB_PAIR_VALUE_);
}

/* Test vectors: values of the inputs of the graph, and what the outputs are for them. */
static inline uint32_t qfb_vector_count(const qfb_file *file) { return qfb_count_(file, file->vectors); }
static inline qfb_string qfb_vector_name(const qfb_file *file, uint32_t vector)
{
    return qfb_string_(file, qfb_element_(file, file->vectors, vector), QFB_VECTOR_NAME_);
}
/* What a vector states of the nodes: 16 bytes for each output of a node that is no float, node by node; may be empty. */
static inline qfb_list qfb_vector_digests(const qfb_file *file, uint32_t vector)
{
    return qfb_list_(file, qfb_element_(file, file->vectors, vector), QFB_VECTOR_DIGESTS_, 1);
}
/* What the graph's input (or, if `is_output`, output) at `index` is in a vector; all indices of elements that exist. */
static inline qfb_code qfb_get_value(qfb_file *file, uint32_t vector, int is_output, uint32_t index, qfb_value *value)
{
    int end = is_output ? QFB_VECTOR_OUTPUTS_ : QFB_VECTOR_INPUTS_;
    uint32_t values = qfb_to_(file, qfb_element_(file, file->vectors, vector), end), at;
    if (index >= qfb_count_(file, values))
        return qfb_fail_(file, QFB_MISSING, "", "vector", vector, "has no such value");
    at = qfb_element_(file, values, index);
    value->shape = qfb_list_(file, at, QFB_VALUE_SHAPE_, 8);
    if (!qfb_at_(file, at, QFB_VALUE_BUFFER_))
        return qfb_refuse_(file, "F12", "vector", vector, "a value has no buffer");
    return qfb_get_buffer(file, qfb_uint_(file, at, QFB_VALUE_BUFFER_, 0), &value->array);
}

/* The value at `index` of a vector, counted over inputs and outputs together, and the tensor that it is one of. */
static inline qfb_code qfb_nth_value_(qfb_file *file, uint32_t v, uint32_t index, qfb_tensor *tensor, qfb_value *value)
{
    qfb_list inputs = qfb_inputs(file), outputs = qfb_outputs(file);
    int is_output = index >= inputs.count;
    uint32_t i = is_output ? index - inputs.count : index;
    if (qfb_get_value(file, v, is_output, i, value)) {
        if (file->error.code == QFB_MISSING)
            qfb_refuse_(file, "F7", "vector", v, "there is no such buffer");
        return file->error.code;
    }
    return qfb_get_tensor(file, (uint32_t)qfb_integer(is_output ? &outputs : &inputs, i), tensor);
}

/* ---- Rules: quantizations: form (V20), blocks (V21), numbers (V22), range (V23), observers (V25) ---- */

enum {
    QFB_REALS_ = 1 << QFB_FLOAT16 | 1 << QFB_BFLOAT16 | 1 << QFB_FLOAT32 | 1 << QFB_FLOAT64,
    QFB_SCALES_ = QFB_REALS_ | 1 << QFB_FLOAT8_E8M0FNU | 1 << QFB_FLOAT8_E4M3FN,
    QFB_CODES_ = 1 << QFB_INT8 | 1 << QFB_UINT8 | 1 << QFB_FLOAT8_E4M3FN,
    QFB_GROUPS_ = 1 << QFB_UINT8 | 1 << QFB_UINT16 | 1 << QFB_INT32,
    QFB_SMALL_ = 1 << QFB_INT4 | 1 << QFB_UINT4 | 1 << QFB_INT2 | 1 << QFB_UINT2,
    QFB_IN_TABLES_ = QFB_REALS_ | QFB_SMALL_ | 1 << QFB_INT8 | 1 << QFB_UINT8 | 1 << QFB_INT16 | 1 << QFB_UINT16
};

static inline int qfb_is_among_(qfb_dtype dtype, int types) { return types >> dtype & 1; }

static inline int qfb_same_list_(const qfb_list *a, const qfb_list *b)
{
    return a->count == b->count &&
           (!a->count || !memcmp(a->bytes + a->at, b->bytes + b->at, (size_t)a->count * a->width));
}

/* There are as many blocks as an array of that shape has. */
static inline qfb_code qfb_check_blocks_(
    qfb_file *file, uint32_t index, const qfb_list *shape, const qfb_quantization *q)
{
    const qfb_numbers *groups = &q->group_index;
    uint32_t i, large = 0, rank = shape->present ? shape->count : (uint32_t)QFB_MAX_RANK;
    if (q->scale.shape.count != q->block.count || q->block.count > rank)
        return qfb_invalid_(file, "V21", index, "the numbers of dimensions of blocks, scales and tensor do not fit");
    for (i = 0; i < q->block.count; i++) {
        int64_t block = qfb_integer(&q->block, i), count = qfb_integer(&q->scale.shape, i);
        int64_t size = shape->present ? qfb_integer(shape, i) : -1;
        large += block > 1;
        if (block < 0 || (!block && i + 1 == q->block.count) || (block > 1 && block >= size))
            return qfb_invalid_(file, "V21", index, "a size of blocks is negative, or too large, or a 0 at the end");
        if (block > 1 && groups->dtype
                ? groups->shape.count != 1 || qfb_integer(&groups->shape, 0) != size
                : !block ? count != 1 : size >= 0 && count != size / block + (size % block != 0))
            return qfb_invalid_(file, "V21", index, "the numbers of blocks and of scales or group indices differ");
    }
    if (groups->dtype && (large != 1 || !qfb_is_among_(groups->dtype, QFB_GROUPS_)))
        return qfb_invalid_(file, "V21", index, "a group index of an invalid type, or without blocks in one dimension");
    return QFB_OK;
}

static inline qfb_code qfb_check_form_(qfb_file *file, uint32_t index, qfb_dtype dtype, const qfb_quantization *q);

/* Scales or offsets have one of those types, or are quantized, which the second level is not. */
static inline qfb_code qfb_check_reals_(qfb_file *file, uint32_t index, const qfb_numbers *numbers, int types)
{
    qfb_quantization second;
    if (!qfb_is_among_(numbers->dtype, numbers->second_level ? QFB_CODES_ : types))
        return qfb_invalid_(file, "V20", index, "scales or offsets do not have a type for them");
    if (numbers->second_level && (qfb_read_second_(file, index, numbers, &second) ||
                                  qfb_check_form_(file, index, numbers->dtype, &second) ||
                                  qfb_check_blocks_(file, index, &numbers->shape, &second)))
        return file->error.code;
    return QFB_OK;
}

/* The types and shapes of the numbers by which an array of that type is quantized. */
static inline qfb_code qfb_check_form_(qfb_file *file, uint32_t index, qfb_dtype dtype, const qfb_quantization *q)
{
    const qfb_numbers *zero = &q->zero_point, *table = &q->table;
    uint32_t bits = qfb_dtype_of(dtype)->bits;
    if (qfb_check_reals_(file, index, &q->scale, QFB_SCALES_) ||
        (q->offset.dtype && qfb_check_reals_(file, index, &q->offset, QFB_REALS_)))
        return file->error.code;
    if ((zero->shape.count && !qfb_same_list_(&zero->shape, &q->scale.shape)) ||
        (q->offset.shape.count && !qfb_same_list_(&q->offset.shape, &q->scale.shape)))
        return qfb_invalid_(file, "V20", index, "there are neither as many zero points or offsets as scales, nor one");
    if (qfb_is_integer_type(dtype) ? !qfb_is_integer_type(zero->dtype) && zero->dtype != q->scale.dtype
                                   : zero->dtype != QFB_UINT8 || zero->shape.count || zero->array.data[0])
        return qfb_invalid_(file, "V20", index, "the zero points have an invalid type, or are not 0");
    if (table->dtype && (!qfb_is_among_(table->dtype, QFB_IN_TABLES_) || bits > 8 ||
                         !qfb_is_integer_type(dtype) || table->shape.count != 1 || table->count != 1u << bits))
        return qfb_invalid_(file, "V20", index, "the table does not have a value for each code, or an invalid type");
    return QFB_OK;
}

/* The first type that holds both of two integers, of those that zero points have; 0 if none does. */
static inline int qfb_first_holding_(int64_t least, int64_t most)
{
    static const uint8_t types[] = {QFB_UINT8, QFB_INT8, QFB_UINT16, QFB_INT16, QFB_INT32};
    uint32_t i;
    for (i = 0; i < sizeof types; i++)
        if (qfb_dtype_of(types[i])->low <= least && most <= qfb_dtype_of(types[i])->high)
            return types[i];
    return 0;
}

/* What is wrong with numbers of that field between two keys; NULL if nothing is. `element` is the type that they are
 * for, 0 at the second level; `signs`: whether scales may be 0 and less. */
static inline const char *qfb_wrong_numbers_(
    const qfb_quantization *q, const qfb_numbers *n, const qfb_dtype_info *element, int signs, int64_t least,
    int64_t most)
{
    int64_t groups = 0;
    uint32_t i;
    if (n == &q->scale && !n->second_level) {
        if (!signs && !qfb_is_positive_(least))
            return "a scale is not greater than 0 as float32";
        if (qfb_is_infinite_(least) || qfb_is_infinite_(most))
            return "a scale is infinite as float32";
    }
    if (n == &q->zero_point && qfb_is_integer_type(n->dtype)) {
        if (element && (least < element->low || most > element->high))
            return "a zero point is outside the range of the element type";
        if (qfb_first_holding_(least, most) != (int)n->dtype)
            return "the zero points are not of the first type that holds them";
    }
    for (i = 0; n == &q->group_index && i < q->block.count; i++)
        groups = qfb_integer(&q->block, i) > 1 ? qfb_integer(&q->scale.shape, i) : groups;
    return n == &q->group_index && (least < 0 || most >= groups) ? "a group index is not that of a block" : NULL;
}

enum { QFB_AT_ONCE_ = 4096 }; /* the most bytes of numbers that are checked when a file is opened, with its metadata */

/* The numbers of a quantization, and of the second level below it: small ones, or large ones. */
static inline qfb_code qfb_check_numbers_(
    qfb_walk_ *walk, uint32_t index, const qfb_quantization *q, const qfb_dtype_info *element, int signs, int large)
{
    const qfb_numbers *all[] = {&q->scale, &q->zero_point, &q->offset, &q->table, &q->group_index};
    qfb_quantization second;
    size_t i;
    for (i = 0; i < sizeof all / sizeof *all; i++) {
        const qfb_numbers *n = all[i];
        int64_t least, most;
        const char *wrong = NULL;
        if (n->second_level && (qfb_read_second_(walk->file, index, n, &second) ||
                                qfb_check_numbers_(walk, index, &second, NULL, 1, large)))
            return walk->file->error.code;
        if (!n->count || (n->array.size > QFB_AT_ONCE_) != large)
            continue;
        if (qfb_range_(walk, &n->array, n->dtype, n->count, 0, &least, &most))
            return walk->file->error.code;
        if (!qfb_is_integer_type(n->dtype) && !(qfb_is_finite_(least) && qfb_is_finite_(most)))
            wrong = "a scale, zero point, offset or value of a table is not finite";
        else if ((n == &q->zero_point || (n == &q->offset && !n->second_level)) && n->shape.count && least == most)
            wrong = "all zero points or offsets are equal";
        else
            wrong = qfb_wrong_numbers_(q, n, element, signs, least, most);
        if (wrong)
            return qfb_invalid_(walk->file, "V22", index, wrong);
    }
    return QFB_OK;
}

/* The same for a tensor, unless it was done before: tensors may share a quantization. */
static inline qfb_code qfb_check_numbers_of_(qfb_walk_ *walk, uint32_t index, const qfb_tensor *tensor, int large)
{
    int signs = tensor->is_constant && qfb_channel_axis(&tensor->quantization) < -1;
    uint32_t at = qfb_to_(walk->file, qfb_element_(walk->file, walk->file->tensors, index), QFB_TENSOR_QUANTIZATION_);
    if (!at || qfb_is_known_(walk, 64u + 2u * tensor->dtype + (uint32_t)signs, at))
        return QFB_OK;
    return qfb_check_numbers_(walk, index, &tensor->quantization, qfb_dtype_of(tensor->dtype), signs, large);
}

static inline qfb_code qfb_check_observed_(qfb_walk_ *walk, uint32_t index, const qfb_quantization *q)
{
    qfb_file *file = walk->file;
    uint32_t i, count = q->observed_minimum.count;
    if (!q->observed_minimum.present)
        return QFB_OK;
    if (qfb_spend_(walk, (uint64_t)16 * count, 0)) /* tensors may share a quantization */
        return file->error.code;
    if (!q->observer.size)
        return qfb_invalid_(file, "V25", index, "the observer has no name");
    if (count != q->observed_maximum.count || (count != 1 && count != q->scale.count))
        return qfb_invalid_(file, "V25", index, "the numbers of observed ranges and scales differ");
    for (i = 0; i < count; i++) {
        uint64_t low = qfb_bits(&q->observed_minimum, i), high = qfb_bits(&q->observed_maximum, i);
        if (qfb_is_nan_(low) || qfb_is_nan_(high) || qfb_order_(low) > qfb_order_(high))
            return qfb_invalid_(file, "V25", index, "an observed minimum is above its maximum");
    }
    if (q->has_observed_range > 1 || (q->has_observed_range && q->observed_quant_min > q->observed_quant_max))
        return qfb_invalid_(file, "V25", index, "the range of the observer is not valid");
    return QFB_OK;
}

static inline qfb_code qfb_check_quantization_(qfb_walk_ *walk, uint32_t index, const qfb_tensor *tensor)
{
    qfb_file *file = walk->file;
    const qfb_quantization *q = &tensor->quantization;
    const qfb_dtype_info *info = qfb_dtype_of(tensor->dtype);
    if (qfb_check_form_(file, index, tensor->dtype, q) || qfb_check_blocks_(file, index, &tensor->shape, q) ||
        qfb_check_observed_(walk, index, q))
        return file->error.code;
    if (!tensor->is_constant && !qfb_is_integer_type(q->zero_point.dtype))
        return qfb_invalid_(file, "V20", index, "a tensor that is not constant has zero points of floats");
    if (info->high == 0 || info->bits > 32)
        return qfb_invalid_(file, "V23", index, "the element type cannot be quantized");
    if (q->quant_min < info->low || q->quant_min > q->quant_max || q->quant_max > info->high)
        return qfb_invalid_(file, "V23", index, "[quant_min, quant_max] is not a range of the element type");
    return qfb_check_numbers_of_(walk, index, tensor, 0);
}

/* ---- Rules: tensors (V1 to V10) ---- */

static inline qfb_code qfb_check_shape_(qfb_file *file, uint32_t index, const qfb_tensor *tensor)
{
    uint64_t product = 1;
    uint32_t i;
    if (!tensor->shape.present && tensor->is_constant)
        return qfb_invalid_(file, "V3", index, "a constant has no shape");
    if (tensor->dims.count && tensor->dims.count != (tensor->shape.present ? tensor->shape.count : 0))
        return qfb_invalid_(file, "F12", index, "the numbers of sizes and of their names differ");
    if (tensor->shape.count > QFB_MAX_RANK)
        return qfb_invalid_(file, "V3", index, "more than 32 dimensions");
    for (i = 0; i < tensor->shape.count; i++) {
        int64_t size = qfb_integer(&tensor->shape, i);
        if (tensor->dims.count && size != -1 && qfb_text(&tensor->dims, i).size)
            return qfb_invalid_(file, "F12", index, "a size has both a name and a number");
        if (size < -1 || (size == -1 && tensor->is_constant))
            return qfb_invalid_(file, "V3", index, "a size is negative, or that of a constant is not fixed");
        if (size > 0 && (uint64_t)size >= ((uint64_t)1 << 60) / product + (((uint64_t)1 << 60) % product != 0))
            return qfb_invalid_(file, "V3", index, "the product of the sizes is 2^60 or more");
        product *= size > 0 ? (uint64_t)size : 1;
    }
    return QFB_OK;
}

static inline qfb_code qfb_check_aliases_(qfb_file *file, uint32_t index, const qfb_tensor *tensor)
{
    uint32_t i;
    for (i = 0; i < tensor->aliases.count; i++)
        if (!qfb_text(&tensor->aliases, i).size ||
            (i && qfb_compare(qfb_text(&tensor->aliases, i - 1), qfb_text(&tensor->aliases, i)) >= 0))
            return qfb_invalid_(file, "V4", index, "an alias is empty, out of order, or repeated");
    return QFB_OK;
}

static inline qfb_code qfb_check_tensors_(qfb_walk_ *walk)
{
    qfb_file *file = walk->file;
    qfb_string before = {"", 0};
    qfb_tensor tensor;
    uint32_t i;
    for (i = 0; i < qfb_tensor_count(file); i++) {
        if (qfb_read_tensor_(file, i, &tensor))
            return file->error.code;
        if (!tensor.name.size)
            return qfb_invalid_(file, "V1", i, "the name is empty");
        if (i && qfb_compare(before, tensor.name) >= 0)
            return qfb_invalid_(file, "F11", i, "the names of the tensors are out of order or repeated");
        before = tensor.name;
        if (qfb_check_shape_(file, i, &tensor) || qfb_check_aliases_(file, i, &tensor))
            return file->error.code;
        if (tensor.is_constant && tensor.array.size != qfb_needed_(&tensor.shape, qfb_dtype_of(tensor.dtype)->bits))
            return qfb_invalid_(file, "V10", i, "the number of stored bytes does not fit type and shape");
        if (tensor.is_quantized && qfb_check_quantization_(walk, i, &tensor))
            return file->error.code;
    }
    return QFB_OK;
}

/* ---- Rules: the graph, source and metadata (F7, F11, F12) ---- */

/* Indices of tensors; -1 only where `low` says so. */
static inline int qfb_are_tensors_(const qfb_file *file, qfb_list list, int64_t low)
{
    uint32_t i;
    for (i = 0; i < list.count; i++)
        if (qfb_integer(&list, i) < low || qfb_integer(&list, i) >= (int64_t)qfb_tensor_count(file))
            return 0;
    return 1;
}

static inline qfb_code qfb_check_attributes_(qfb_file *file, uint32_t index, const qfb_node *node)
{
    qfb_string before = {"", 0};
    qfb_attribute a;
    uint32_t i, at;
    int k;
    for (i = 0; i < node->attribute_count; i++) {
        qfb_get_attribute(file, node, i, &a);
        at = qfb_element_(file, node->attributes, i);
        if (i && qfb_compare(before, a.name) >= 0)
            return qfb_refuse_(file, "F11", "node", index, "the attributes are not in order");
        before = a.name;
        if (a.type < QFB_INT || a.type > QFB_STRINGS)
            return qfb_refuse_(file, "F12", "node", index, "an attribute has an unknown type");
        if ((a.type == QFB_STRING && !qfb_at_(file, at, QFB_ATTRIBUTE_STRING_)) ||
            (a.type >= QFB_INTS && !a.list.present))
            return qfb_refuse_(file, "F12", "node", index, "an attribute has no value");
        if (a.type > QFB_INTS && !a.list.count)
            return qfb_refuse_(file, "F12", "node", index, "an empty list does not have the type Ints");
        if ((a.type != QFB_INT && a.integer) || (a.type != QFB_FLOAT && a.float_bits << 1))
            return qfb_refuse_(file, "F12", "node", index, "an attribute has values of two types");
        for (k = QFB_STRING; k <= QFB_STRINGS; k++)
            if (k != (int)a.type && qfb_at_(file, at, QFB_ATTRIBUTE_INT_ + k - QFB_INT))
                return qfb_refuse_(file, "F12", "node", index, "an attribute has values of two types");
    }
    return QFB_OK;
}

static inline qfb_code qfb_check_nodes_(qfb_file *file)
{
    qfb_node node;
    uint32_t i;
    if (!qfb_are_tensors_(file, qfb_inputs(file), 0) || !qfb_are_tensors_(file, qfb_outputs(file), 0))
        return qfb_refuse_(file, "F7", "file", 0, "an input or output of the graph is not one of its tensors");
    for (i = 0; i < qfb_node_count(file); i++) {
        if (qfb_get_node(file, i, &node))
            return file->error.code;
        if (!qfb_are_tensors_(file, node.inputs, -1) || !qfb_are_tensors_(file, node.outputs, 0))
            return qfb_refuse_(file, "F7", "node", i, "an input or output is not a tensor");
        if (qfb_check_attributes_(file, i, &node))
            return file->error.code;
    }
    return QFB_OK;
}

static inline qfb_code qfb_check_pairs_(qfb_file *file, uint32_t pairs)
{
    uint32_t i;
    for (i = 1; i < qfb_count_(file, pairs); i++)
        if (qfb_compare(qfb_string_(file, qfb_element_(file, pairs, i - 1), QFB_PAIR_KEY_),
                        qfb_string_(file, qfb_element_(file, pairs, i), QFB_PAIR_KEY_)) >= 0)
            return qfb_refuse_(file, "F11", "file", 0, "the keys of source or metadata are not in order");
    return QFB_OK;
}

/* ---- Rules: test vectors (V50, V51) ---- */

/* Sizes of one name are equal: each is compared with the first of its name. */
static inline qfb_code qfb_check_names_(qfb_walk_ *walk, uint32_t v, uint32_t index)
{
    qfb_file *file = walk->file;
    uint32_t d, other, i, is_found;
    qfb_tensor a, b;
    qfb_value x, y;
    if (qfb_nth_value_(file, v, index, &a, &x))
        return file->error.code;
    for (d = 0; d < a.dims.count; d++)
        for (other = is_found = 0; other <= index && !is_found && qfb_text(&a.dims, d).size; other++) {
            if (qfb_nth_value_(file, v, other, &b, &y) || qfb_spend_(walk, 4 + b.dims.count, 0))
                return file->error.code;
            for (i = 0; i < b.dims.count && !is_found; i++) {
                is_found = !qfb_compare(qfb_text(&a.dims, d), qfb_text(&b.dims, i));
                if (is_found && qfb_integer(&x.shape, d) != qfb_integer(&y.shape, i))
                    return qfb_refuse_(file, "V51", "vector", v, "sizes with the same name differ");
            }
        }
    return QFB_OK;
}

/* A tensor that is at one end of the graph twice has one value: each is compared with the first of that tensor. */
static inline qfb_code qfb_check_repeated_(qfb_walk_ *walk, uint32_t v, uint32_t index)
{
    qfb_file *file = walk->file;
    int is_output = index >= qfb_inputs(file).count;
    qfb_list ends = is_output ? qfb_outputs(file) : qfb_inputs(file);
    uint32_t i = is_output ? index - qfb_inputs(file).count : index, k = 0;
    qfb_value x, y;
    while (qfb_integer(&ends, k) != qfb_integer(&ends, i))
        k++;
    if (qfb_spend_(walk, k / 16, 0) || qfb_get_value(file, v, is_output, i, &x) ||
        qfb_get_value(file, v, is_output, k, &y))
        return file->error.code;
    if (x.array.buffer != y.array.buffer || !qfb_same_list_(&x.shape, &y.shape))
        return qfb_refuse_(file, "V50", "vector", v, "a tensor has two values");
    return QFB_OK;
}

/* A value of a test vector is a constant with the quantization of its tensor, and of its sizes where they are known. */
static inline qfb_code qfb_check_value_(qfb_walk_ *walk, uint32_t v, uint32_t index)
{
    qfb_file *file = walk->file;
    qfb_tensor tensor, constant;
    qfb_value value;
    uint32_t i;
    if (qfb_nth_value_(file, v, index, &tensor, &value))
        return file->error.code;
    constant = tensor, constant.is_constant = 1, constant.shape = value.shape, constant.dims.count = 0;
    if (qfb_check_shape_(file, v, &constant) == QFB_OK && constant.is_quantized)
        qfb_check_blocks_(file, v, &constant.shape, &constant.quantization);
    if (!file->error.code && value.array.size != qfb_needed_(&value.shape, qfb_dtype_of(tensor.dtype)->bits))
        return qfb_refuse_(file, "V10", "vector", v, "the size of a value does not fit type and shape");
    if (file->error.code) {
        file->error.place = "vector";
        return file->error.code;
    }
    if (tensor.shape.present && tensor.shape.count != value.shape.count)
        return qfb_refuse_(file, "V51", "vector", v, "a value has the wrong number of dimensions");
    for (i = 0; tensor.shape.present && i < tensor.shape.count; i++)
        if (qfb_integer(&tensor.shape, i) != -1 && qfb_integer(&tensor.shape, i) != qfb_integer(&value.shape, i))
            return qfb_refuse_(file, "V51", "vector", v, "a value does not have the sizes of its tensor");
    return QFB_OK;
}

/* The outputs of nodes that are no floats: a vector has no digests, or one of 16 bytes for each of them. */
static inline uint64_t qfb_digested_(qfb_file *file)
{
    uint64_t count = 0;
    uint32_t n, i;
    for (n = 0; n < qfb_node_count(file); n++) {
        qfb_list outputs = qfb_list_(file, qfb_element_(file, file->nodes, n), QFB_NODE_OUTPUTS_, 4);
        for (i = 0; i < outputs.count; i++) {
            uint32_t tensor = qfb_element_(file, file->tensors, (uint32_t)qfb_integer(&outputs, i));
            uint32_t dtype = qfb_ubyte_(file, tensor, QFB_TENSOR_DTYPE_, 0);
            count += dtype == QFB_BOOL || qfb_is_integer_type(dtype);
        }
    }
    return count;
}

static inline qfb_code qfb_check_vectors_(qfb_walk_ *walk)
{
    qfb_file *file = walk->file;
    uint32_t inputs = qfb_inputs(file).count, outputs = qfb_outputs(file).count, v, i;
    uint64_t digested = qfb_vector_count(file) ? qfb_digested_(file) : 0;
    for (v = 0; v < qfb_vector_count(file); v++) {
        uint32_t at = qfb_element_(file, file->vectors, v), stated = qfb_vector_digests(file, v).count;
        if (qfb_count_(file, qfb_to_(file, at, QFB_VECTOR_INPUTS_)) != inputs ||
            qfb_count_(file, qfb_to_(file, at, QFB_VECTOR_OUTPUTS_)) != outputs ||
            !(inputs || outputs || qfb_node_count(file)))
            return qfb_refuse_(file, "V50", "vector", v, "does not have one value for each input and output");
        for (i = 0; i < inputs + outputs; i++)
            if (qfb_check_value_(walk, v, i) || qfb_check_names_(walk, v, i) || qfb_check_repeated_(walk, v, i))
                return file->error.code;
        if (stated && stated != 16 * digested)
            return qfb_refuse_(file, "V70", "vector", v, "does not have one digest for each output of a node");
    }
    return QFB_OK;
}

/* ---- Rules: the container (F1 to F5, F8, F10, F13, F14) ---- */

static inline qfb_code qfb_check_header_(qfb_file *file)
{
    const uint8_t *p = file->bytes;
    uint64_t header_size, meta_size, data_offset, i;
    if (file->size < 8 || memcmp(p + 4, "QFB", 3))
        return qfb_fail_(file, QFB_NOT_QFB, "F1", "byte", 4, "is not a .qfb file");
    if (p[7] != '1')
        return qfb_fail_(file, QFB_NEWER, "F1", "byte", 7, "has a different major version; this reader supports 1");
    if (file->size < QFB_HEADER_SIZE)
        return qfb_refuse_(file, "F3", "byte", file->size, "ends inside the header");
    if (memcmp(p + 8, "qh01", 4))
        return qfb_refuse_(file, "F1", "byte", 8, "the header tag is not qh01");
    if (qfb_u32_(p + 48)) {
        qfb_fail_(file, QFB_NEWER, "F10", "byte", 48, "requires flags that this reader does not support");
        return qfb_unknown_(file, "", qfb_u32_(p + 48));
    }
    for (i = 56; i < 128; i += i == 63 ? 33 : 1)
        if (p[i])
            return qfb_refuse_(file, "F2", "byte", i, "a reserved byte of the header is not zero");
    header_size = qfb_u32_(p + 12), meta_size = qfb_u64_(p + 16), data_offset = qfb_u64_(p + 24);
    file->data_size = qfb_u64_(p + 32);
    if (header_size < QFB_HEADER_SIZE || header_size % 8 || header_size > meta_size || meta_size > 0x7fffffff)
        return qfb_refuse_(file, "F3", "byte", 12, "the sizes of header and metadata are not valid");
    if (data_offset != (meta_size + QFB_PAGE - 1) / QFB_PAGE * QFB_PAGE)
        return qfb_refuse_(file, "F3", "byte", 24, "the data does not begin at the multiple of 4096 after the metadata");
    if (file->size < data_offset || file->size - data_offset != file->data_size || qfb_u64_(p + 40) != file->size)
        return qfb_refuse_(file, "F3", "byte", 40, "the file does not have the size that it states");
    file->start = (uint32_t)header_size, file->meta_size = (uint32_t)meta_size, file->data = p + data_offset;
    for (i = meta_size; i < data_offset; i++)
        if (p[i])
            return qfb_refuse_(file, "F5", "byte", i, "the padding before the data is not zero");
    return QFB_OK;
}

static inline qfb_code qfb_check_digest_(qfb_file *file)
{
    static const uint8_t zeros[32] = {0};
    qfb_sha256_ hash;
    qfb_sha256_begin_(&hash);
    qfb_sha256_add_(&hash, file->bytes, 64);
    qfb_sha256_add_(&hash, zeros, 32);
    qfb_sha256_add_(&hash, file->bytes + 96, file->meta_size - 96);
    if (!qfb_sha256_is_(&hash, file->bytes + 64))
        return qfb_fail_(file, QFB_DAMAGED, "F4", "byte", 64, "the metadata is damaged: its sha256 differs");
    return QFB_OK;
}

/* Buffers lie in order inside the data, at multiples of 64 and without holes (rule F8). */
static inline qfb_code qfb_check_layout_(qfb_file *file)
{
    uint64_t end = 0;
    uint32_t i, count = qfb_buffer_count(file);
    for (i = 0; i < count; i++) {
        uint32_t at = qfb_element_(file, file->buffers, i);
        uint64_t offset = qfb_ulong_(file, at, QFB_BUFFER_OFFSET_), size = qfb_ulong_(file, at, QFB_BUFFER_SIZE_);
        if (offset % QFB_ALIGNMENT || offset < end || offset - end >= QFB_ALIGNMENT || offset > file->data_size ||
            size > file->data_size - offset)
            return qfb_refuse_(file, "F8", "buffer", i, "has an invalid position");
        if (file->shards && size && qfb_shard_at_(file, offset) != qfb_shard_at_(file, offset + size - 1))
            return qfb_refuse_(file, "F14", "buffer", i, "is in two shards");
        end = offset + size;
    }
    if (end != file->data_size)
        return qfb_refuse_(file, "F8", "file", 0, "the data does not end with the last buffer");
    return QFB_OK;
}

enum { QFB_MARKS_ = 8192 };

/* Mark a buffer among QFB_MARKS_ of them. */
static inline void qfb_mark_(uint8_t *marks, uint64_t first, uint32_t buffer)
{
    if (buffer >= first && buffer - first < QFB_MARKS_)
        marks[(buffer - first) / 8] |= (uint8_t)(1u << (buffer - first) % 8);
}

/* Mark the buffers of a Quantization, or of a SecondLevel below it. */
static inline void qfb_mark_level_(const qfb_file *file, uint8_t *marks, uint64_t first, uint32_t at, int level)
{
    int field, last = level == 1 ? QFB_Q_GROUPS_ : QFB_Q_TABLE_;
    for (field = QFB_Q_SCALE_; at && field <= last; field++) {
        uint32_t array = qfb_to_(file, at, field);
        if (!array)
            continue;
        qfb_mark_(marks, first, qfb_uint_(file, array, QFB_ARRAY_BUFFER_, UINT32_MAX));
        if (qfb_is_array_(level, field))
            qfb_mark_level_(file, marks, first, qfb_to_(file, array, QFB_ARRAY_QUANTIZATION_), 2);
    }
}

/* Every buffer belongs to a tensor, its quantization or a test vector (rule F13). */
static inline qfb_code qfb_check_used_(qfb_walk_ *walk)
{
    qfb_file *file = walk->file;
    uint8_t marks[QFB_MARKS_ / 8];
    uint32_t i, v, end, k, count = qfb_buffer_count(file);
    uint64_t first;
    for (first = 0; first < count; first += QFB_MARKS_) {
        memset(marks, 0, sizeof marks);
        if (qfb_spend_(walk, first ? (uint64_t)16 * qfb_tensor_count(file) : 0, 0))
            return file->error.code;
        for (i = 0; i < qfb_tensor_count(file); i++) {
            uint32_t tensor = qfb_element_(file, file->tensors, i);
            qfb_mark_(marks, first, qfb_uint_(file, tensor, QFB_TENSOR_BUFFER_, UINT32_MAX));
            qfb_mark_level_(file, marks, first, qfb_to_(file, tensor, QFB_TENSOR_QUANTIZATION_), 1);
        }
        for (v = 0; v < qfb_vector_count(file); v++)
            for (end = QFB_VECTOR_INPUTS_; end <= QFB_VECTOR_OUTPUTS_; end++) {
                uint32_t values = qfb_to_(file, qfb_element_(file, file->vectors, v), (int)end);
                if (qfb_spend_(walk, first ? qfb_count_(file, values) : 0, 0))
                    return file->error.code;
                for (k = 0; k < qfb_count_(file, values); k++)
                    qfb_mark_(marks, first,
                              qfb_uint_(file, qfb_element_(file, values, k), QFB_VALUE_BUFFER_, UINT32_MAX));
            }
        for (i = (uint32_t)first; i < count && i - first < QFB_MARKS_; i++)
            if (!(marks[(i - first) / 8] >> (i - first) % 8 & 1))
                return qfb_refuse_(file, "F13", "buffer", i, "is not used");
    }
    return QFB_OK;
}

/* The names and sizes of shards (rule F14), of a file that requires the feature or does not. */
static inline qfb_code qfb_check_stated_(qfb_file *file, int is_required)
{
    uint64_t end = 0, size;
    uint32_t i, k, count = qfb_shard_count(file);
    if ((count > 0) != is_required)
        return qfb_refuse_(file, "F14", "file", 0, "has shards, or requires them, but not both");
    if (count && file->data_size)
        return qfb_refuse_(file, "F14", "file", 0, "has both shards and data");
    for (i = 0; i < count; i++) {
        qfb_string name = qfb_shard_name(file, i);
        size = qfb_ulong_(file, qfb_element_(file, file->stated, i), QFB_SHARD_SIZE_);
        if (name.size < 4 || name.size > 255 || memcmp(name.text + name.size - 4, ".qfs", 4))
            return qfb_refuse_(file, "F14", "shard", i, "does not have the name of a shard");
        for (k = 0; k < name.size; k++)
            if ((unsigned char)name.text[k] < 32 || memchr("/\\:\x7f", name.text[k], 4))
                return qfb_refuse_(file, "F14", "shard", i, "has a name that may lead elsewhere");
        if (i && qfb_compare(qfb_shard_name(file, i - 1), name) >= 0)
            return qfb_refuse_(file, "F14", "shard", i, "has a name that is out of order or repeated");
        if (!size || end % QFB_ALIGNMENT || size > INT64_MAX - end)
            return qfb_refuse_(file, "F14", "shard", i, "has an invalid size");
        end += size;
    }
    return QFB_OK;
}

/* The features that a file requires are known. */
static inline qfb_code qfb_check_features_(qfb_file *file)
{
    qfb_list features = qfb_list_(file, file->model, QFB_MODEL_FEATURES_, 4);
    int has_shards = 0;
    uint32_t i;
    for (i = 0; i < features.count; i++) {
        if (!qfb_equals(qfb_text(&features, i), "shards")) {
            qfb_fail_(file, QFB_NEWER, "F10", "file", 0, "requires features that this reader does not support");
            return qfb_unknown_(file, qfb_text(&features, i).text, 0);
        }
        has_shards = 1;
    }
    return qfb_check_stated_(file, has_shards);
}

/* ---- Rules: stored data (F8, F9, F15) and its values (V11, V12, V22, V23) ---- */

/* The sha256 that the file states for a buffer of it: 32 bytes. */
static inline const uint8_t *qfb_digest(const qfb_file *file, uint32_t index)
{
    return file->bytes + qfb_at_(file, qfb_element_(file, file->buffers, index), QFB_BUFFER_DIGEST_);
}
static inline uint64_t qfb_offset(const qfb_file *file, uint32_t index)
{ /* where it begins in the data */
    return qfb_ulong_(file, qfb_element_(file, file->buffers, index), QFB_BUFFER_OFFSET_);
}

/* Whether bytes have the digest that the Buffer or Shard at an index of a vector states: the same field of either. */
static inline int qfb_is_digest_(
    const qfb_file *file, const void *bytes, uint64_t size, uint32_t vector, uint32_t index)
{
    qfb_sha256_ hash;
    qfb_sha256_begin_(&hash);
    qfb_sha256_add_(&hash, (const uint8_t *)bytes, size);
    return qfb_sha256_is_(&hash, file->bytes + qfb_at_(file, qfb_element_(file, vector, index), QFB_BUFFER_DIGEST_));
}

/* The sha256 of a buffer: QFB_DAMAGED if it is not the one stated. For callers that opened without QFB_CHECK_DATA. */
static inline qfb_code qfb_check_buffer(qfb_file *file, uint32_t index)
{
    qfb_array array;
    if (qfb_get_buffer(file, index, &array))
        return file->error.code;
    if (!qfb_is_digest_(file, array.data, array.size, file->buffers, index))
        return qfb_fail_(file, QFB_DAMAGED, "F9", "buffer", index, "the data is damaged: its sha256 differs");
    return QFB_OK;
}

/* What is stored for a tensor: bools are 0 or 1, quantized values lie in their range, unused bits are zero. What has no
 * other values is not read. */
static inline qfb_code qfb_check_values_(
    qfb_walk_ *walk, uint32_t index, const qfb_tensor *tensor, qfb_array array, const qfb_list *shape)
{
    qfb_file *file = walk->file;
    const qfb_dtype_info *info = qfb_dtype_of(tensor->dtype);
    int64_t low = tensor->quantization.quant_min, high = tensor->quantization.quant_max, least, most;
    int is_limited = tensor->is_quantized && (low != info->low || high != info->high);
    uint64_t count = qfb_elements_(shape), used = info->bits < 8 ? count % (8u / info->bits) : 0;
    if (used && array.data[array.size - 1] >> (used * info->bits))
        return qfb_invalid_(file, "V12", index, "bits that no element uses are not zero");
    if (tensor->dtype != QFB_BOOL && !is_limited)
        return QFB_OK;
    if (qfb_range_(walk, &array, tensor->dtype, count, 1, &least, &most))
        return file->error.code;
    if (tensor->dtype == QFB_BOOL)
        return most > 1 ? qfb_invalid_(file, "V11", index, "a bool is neither 0 nor 1") : QFB_OK;
    if (info->kind == 'f')
        low = qfb_order_(qfb_whole_bits_(low)), high = qfb_order_(qfb_whole_bits_(high));
    if (least < low || most > high)
        return qfb_invalid_(file, "V23", index, "a value lies outside [quant_min, quant_max]");
    return QFB_OK;
}

/* The values of all constants, large arrays of quantizations, and test vectors. Many of them may share a buffer; in sum
 * they are read so often only. */
static inline qfb_code qfb_check_all_values_(qfb_file *file)
{
    uint32_t i, v, ends = qfb_inputs(file).count + qfb_outputs(file).count;
    uint64_t total;
    qfb_tensor tensor;
    qfb_value value;
    qfb_walk_ walk;
    memset(&walk, 0, sizeof walk);
    walk.file = file;
    total = file->size + (file->shards ? file->data_size : 0);
    walk.budget = total > UINT64_MAX / QFB_REPETITIONS_ ? UINT64_MAX : QFB_REPETITIONS_ * total;
    for (i = 0; i < qfb_tensor_count(file); i++)
        if (qfb_get_tensor(file, i, &tensor) || qfb_check_numbers_of_(&walk, i, &tensor, 1) ||
            (tensor.is_constant && qfb_check_values_(&walk, i, &tensor, tensor.array, &tensor.shape)))
            return file->error.code;
    for (v = 0; v < qfb_vector_count(file); v++)
        for (i = 0; i < ends; i++)
            if (qfb_nth_value_(file, v, i, &tensor, &value) || qfb_spend_(&walk, 1, 0))
                return file->error.code;
            else if (qfb_check_values_(&walk, v, &tensor, value.array, &value.shape))
                return qfb_fail_(file, file->error.code, file->error.rule, "vector", v, file->error.what);
    return QFB_OK;
}

/* Every buffer, the zeros before it, and the values in it. */
static inline qfb_code qfb_check_data(qfb_file *file)
{
    uint64_t end = 0;
    uint32_t i;
    for (i = 0; i < qfb_shard_count(file); i++)
        if (!qfb_is_digest_(file, file->shards[i].bytes, file->shards[i].size, file->stated, i))
            return qfb_fail_(file, QFB_DAMAGED, "F15", "shard", i, "is damaged: its sha256 differs");
    for (i = 0; i < qfb_buffer_count(file); i++) {
        qfb_array array;
        if (qfb_check_buffer(file, i) || qfb_get_buffer(file, i, &array))
            return file->error.code;
        for (; end < qfb_offset(file, i); end++)
            if (*qfb_data_(file, end))
                return qfb_refuse_(file, "F8", "buffer", i, "a byte before it is not zero");
        end += array.size;
    }
    return qfb_check_all_values_(file);
}

/* ---- Opening ---- */

/* All but the header and the structure. */
static inline qfb_code qfb_check_rest_(qfb_walk_ *walk, unsigned flags)
{
    qfb_file *file = walk->file;
    if (qfb_check_layout_(file) || qfb_check_tensors_(walk) || qfb_check_nodes_(file) ||
        qfb_check_pairs_(file, file->sources) || qfb_check_pairs_(file, file->metadata) || qfb_check_vectors_(walk) ||
        qfb_check_used_(walk))
        return file->error.code;
    return flags & QFB_CHECK_DATA && !(flags & QFB_SKIP_DIGESTS) ? qfb_check_data(file) : QFB_OK;
}

static inline void qfb_begin_walk_(qfb_walk_ *walk, qfb_file *file)
{
    memset(walk, 0, sizeof *walk);
    walk->file = file, walk->budget = (uint64_t)QFB_REPETITIONS_ * file->meta_size;
}

/* Open the `size` bytes of a file. They must not change while it is used. Flags: QFB_SKIP_DIGESTS, QFB_CHECK_DATA.
 * Without QFB_CHECK_DATA only the metadata are read; call qfb_check_buffer before you trust a constant.
 * QFB_SHARDS: the data is in other files; take their names from qfb_shard_name, and call qfb_open_shards. */
static inline qfb_code qfb_open(qfb_file *file, const void *bytes, uint64_t size, unsigned flags)
{
    qfb_walk_ walk;
    memset(file, 0, sizeof *file);
    file->bytes = (const uint8_t *)bytes, file->size = size;
    qfb_fail_(file, QFB_OK, "", "file", 0, "");
    if (qfb_check_header_(file) || (!(flags & QFB_SKIP_DIGESTS) && qfb_check_digest_(file)))
        return file->error.code;
    qfb_begin_walk_(&walk, file);
    if (qfb_target_(file, 0, &file->model) || qfb_walk_table_(&walk, QFB_T_MODEL_, file->model))
        return file->error.code;
    file->stated = qfb_to_(file, file->model, QFB_MODEL_SHARDS_);
    if (qfb_check_features_(file))
        return file->error.code;
    file->graph = qfb_to_(file, file->model, QFB_MODEL_GRAPH_);
    file->buffers = qfb_to_(file, file->model, QFB_MODEL_BUFFERS_);
    file->sources = qfb_to_(file, file->model, QFB_MODEL_SOURCE_);
    file->metadata = qfb_to_(file, file->model, QFB_MODEL_METADATA_);
    file->vectors = qfb_to_(file, file->model, QFB_MODEL_VECTORS_);
    file->tensors = qfb_to_(file, file->graph, QFB_GRAPH_TENSORS_);
    file->nodes = qfb_to_(file, file->graph, QFB_GRAPH_NODES_);
    file->inputs = qfb_to_(file, file->graph, QFB_GRAPH_INPUTS_);
    file->outputs = qfb_to_(file, file->graph, QFB_GRAPH_OUTPUTS_);
    if (qfb_shard_count(file))
        return qfb_fail_(file, QFB_SHARDS, "", "file", 0, "has its data in other files");
    return qfb_check_rest_(&walk, flags);
}

/* Go on after QFB_SHARDS, with the bytes of every shard in the order of the names. They, and the array `shards`, must
 * not change while the file is used. It may be called again, with a shard that was missing. A file that holds a shard
 * must be a regular one in the folder of the file, and no link. */
static inline qfb_code qfb_open_shards(qfb_file *file, qfb_shard *shards, unsigned flags)
{
    qfb_walk_ walk;
    uint32_t i;
    qfb_fail_(file, QFB_OK, "", "file", 0, "");
    file->data_size = 0; /* of an earlier call */
    for (i = 0; i < qfb_shard_count(file); i++) {
        shards[i].begin = file->data_size, file->data_size += shards[i].size;
        if (!shards[i].bytes)
            qfb_refuse_(file, "F15", "shard", i, "is missing, or is not a regular file in that folder");
        else if (shards[i].size != qfb_ulong_(file, qfb_element_(file, file->stated, i), QFB_SHARD_SIZE_))
            qfb_refuse_(file, "F15", "shard", i, "does not have the size that is stated");
        if (file->error.code)
            return qfb_unknown_(file, qfb_shard_name(file, i).text, 0);
    }
    file->shards = shards;
    qfb_begin_walk_(&walk, file);
    return qfb_check_rest_(&walk, flags);
}

/* ---- Mapping files (POSIX) ---- */

#ifdef QFB_POSIX /* define it, and _POSIX_C_SOURCE as 200809L or more, before anything is included */
#include <errno.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

static inline const void *qfb_map_opened_(int file, uint64_t *size)
{
    struct stat found;
    void *mapped = MAP_FAILED;
    if (file < 0)
        return NULL;
    errno = 0;
    if (!fstat(file, &found) && S_ISREG(found.st_mode) && found.st_size > 0 && (uint64_t)found.st_size <= SIZE_MAX) {
        *size = (uint64_t)found.st_size;
        mapped = mmap(NULL, (size_t)*size, PROT_READ, MAP_PRIVATE, file, 0);
    }
    close(file);
    return mapped == MAP_FAILED ? NULL : mapped;
}

/* Map a file into memory, to be read only; NULL if that cannot be done, for the reason in errno, which is 0 for a file
 * that is empty or not a regular one. */
static inline const void *qfb_map(const char *path, uint64_t *size)
{
    return qfb_map_opened_(open(path, O_RDONLY | O_NONBLOCK | O_CLOEXEC), size); /* a FIFO is not waited for */
}

/* The same for a shard of an open file, in the folder `folder`, "." for the current one; no link is followed. */
static inline const void *qfb_map_shard(const qfb_file *file, uint32_t index, const char *folder, uint64_t *size)
{
    int place = open(folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC), opened = -1;
    if (place >= 0) {
        opened = openat(place, qfb_shard_name(file, index).text, O_RDONLY | O_NONBLOCK | O_NOFOLLOW | O_CLOEXEC);
        close(place);
    }
    return qfb_map_opened_(opened, size);
}

static inline void qfb_unmap(const void *bytes, uint64_t size) { munmap((void *)(uintptr_t)bytes, (size_t)size); }
#endif

#endif

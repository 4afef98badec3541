/* qfb.h: reads .qfb files, the format of quantized networks that spec.md describes. One header, C99, no other library.
 *
 * It allocates nothing, writes nothing, and computes without floats. A file is bytes in memory, mapped or read by the
 * caller, which must stay as they are while it is used. `qfb_open` walks over all metadata once: every offset, vtable,
 * length, string, index, shape, scale. What it accepts can be read without another check, so the functions that hand
 * out tensors and nodes fail only for an index that is too large. Numbers are put together from bytes: it does not
 * matter how the machine orders them, nor how the bytes are aligned.
 *
 *     qfb_file file;
 *     qfb_tensor weight;
 *     if (qfb_open(&file, bytes, size, 0) == QFB_OK && qfb_find_tensor(&file, "conv1.weight", &weight) == QFB_OK)
 *         use(weight.data, weight.size);
 *
 * "Rule" is a number of spec.md: F of the container, V of the network in it. */
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
    QFB_OVERFLOW      /* a sum exceeds int32 */
} qfb_code;

/* A failure: what, which rule it breaks ("" if none), and where: `place` is "byte", "tensor", "node", "buffer", "vector"
 * or "file", and `index` says which one. The texts are constants. What a newer reader may know is named: a required
 * feature by `name`, which lies in the file ("" if none); required flags, or the code of an element type, by `number`. */
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

enum {
    QFB_SKIP_DIGESTS = 1, /* do not check the sha256 of the metadata (its structure is checked all the same) */
    QFB_CHECK_DATA = 2    /* check all data, too: every sha256, the zeros between buffers, the range of integers */
};

/* An open file. The fields are the library's own, but for `error`: the last failure. */
typedef struct {
    const uint8_t *bytes, *data;
    uint64_t size, data_size;
    uint32_t meta_size, start, model, graph; /* ends of the FlatBuffer, positions of two tables */
    uint32_t tensors, nodes, inputs, outputs, buffers, sources, metadata, vectors; /* positions of vectors, or 0 */
    qfb_error error;
} qfb_file;

/* A text in UTF-8: `size` bytes, none of them zero, and a zero byte after them. `text` is "" where there is none. */
typedef struct {
    const char *text;
    uint32_t size;
} qfb_string;

/* A list of numbers or texts: take elements with qfb_integer, qfb_double, qfb_bits and qfb_text. */
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

/* real = (q - zero_point) * scale, quant_min <= q <= quant_max. */
typedef struct {
    qfb_list scale;            /* doubles; empty if there are blocks */
    qfb_list zero_point;       /* integers; or empty, and zero_point_float has them */
    qfb_list zero_point_float; /* doubles */
    int64_t quant_min, quant_max;
    int64_t axis; /* the dimension that scales run along; -1: one scale for all */
    qfb_dtype scale_dtype;
    qfb_string scale_name, zero_point_name;
    qfb_list block_shape; /* present if there are blocks: how many elements a block has along each dimension */
    qfb_array block_scale, block_zero_point;
    qfb_dtype block_zero_point_dtype; /* 0: the blocks have no zero points of their own */
    qfb_string observer, qscheme;     /* what calibration saw; no influence on any result */
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

/* ---- Bytes ---- */

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
    return list->width == 8 ? qfb_signed_(qfb_u64_(p), 64) : qfb_signed_(qfb_u32_(p), 32);
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

/* The last failure is about what this reader does not know. */
static inline qfb_code qfb_unknown_(qfb_file *file, const char *name, uint64_t number)
{
    file->error.name = name, file->error.number = number;
    return file->error.code;
}

/* ---- SHA-256 (FIPS 180-4) ---- */

typedef struct {
    uint32_t state[8];
    uint64_t size;
    uint8_t block[64];
} qfb_sha256_;

static inline uint32_t qfb_turn_(uint32_t x, int n) { return x >> n | x << (32 - n); }

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
        w[i] = w[i - 16] + (qfb_turn_(a, 7) ^ qfb_turn_(a, 18) ^ a >> 3) + w[i - 7] +
               (qfb_turn_(b, 17) ^ qfb_turn_(b, 19) ^ b >> 10);
    }
    memcpy(v, state, sizeof v);
    for (i = 0; i < 64; i++) {
        uint32_t a = v[0], e = v[4];
        uint32_t one = v[7] + (qfb_turn_(e, 6) ^ qfb_turn_(e, 11) ^ qfb_turn_(e, 25)) + ((e & v[5]) ^ (~e & v[6])) +
                       k[i] + w[i];
        uint32_t two = (qfb_turn_(a, 2) ^ qfb_turn_(a, 13) ^ qfb_turn_(a, 22)) +
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

/* Whether the digest of all that was added is `wanted`, 32 bytes. */
static inline int qfb_sha256_is_(qfb_sha256_ *hash, const uint8_t *wanted)
{
    uint8_t end[72] = {0x80}, digest[32];
    uint64_t bits = hash->size * 8;
    size_t pad = 64 - (hash->size + 8) % 64, i;
    for (i = 0; i < 8; i++)
        end[pad + i] = (uint8_t)(bits >> (56 - 8 * i));
    qfb_sha256_add_(hash, end, pad + 8);
    for (i = 0; i < 32; i++)
        digest[i] = (uint8_t)(hash->state[i / 4] >> (24 - 8 * (i % 4)));
    return !memcmp(digest, wanted, 32);
}

/* ---- The schema, as tables that drive the walk: qfb.fbs, field by field ---- */

enum { QFB_SCALAR_, QFB_STRUCT_, QFB_STRING_, QFB_TABLE_, QFB_SCALARS_, QFB_STRINGS_, QFB_TABLES_ };
enum {
    QFB_T_ATTRIBUTE_, QFB_T_BLOCKS_, QFB_T_BUFFER_, QFB_T_GRAPH_, QFB_T_PAIR_, QFB_T_MODEL_, QFB_T_NODE_,
    QFB_T_OBSERVED_, QFB_T_QUANTIZATION_, QFB_T_TENSOR_, QFB_T_VALUE_, QFB_T_VECTOR_
};

/* Numbers of the fields that are read one by one. */
enum { QFB_ATTRIBUTE_TYPE_ = 1, QFB_ATTRIBUTE_INT_, QFB_ATTRIBUTE_FLOAT_, QFB_ATTRIBUTE_STRING_, QFB_ATTRIBUTE_INTS_ };
enum { QFB_BLOCKS_SHAPE_, QFB_BLOCKS_SCALE_, QFB_BLOCKS_ZERO_, QFB_BLOCKS_ZERO_DTYPE_ };
enum { QFB_GRAPH_TENSORS_, QFB_GRAPH_NODES_, QFB_GRAPH_INPUTS_, QFB_GRAPH_OUTPUTS_, QFB_GRAPH_NAME_ };
enum {
    QFB_MODEL_MINOR_, QFB_MODEL_FEATURES_, QFB_MODEL_GRAPH_, QFB_MODEL_BUFFERS_, QFB_MODEL_PRODUCER_,
    QFB_MODEL_ENGINE_, QFB_MODEL_SOURCE_, QFB_MODEL_METADATA_, QFB_MODEL_VECTORS_
};
enum {
    QFB_NODE_OPERATOR_, QFB_NODE_VERSION_, QFB_NODE_INPUTS_, QFB_NODE_OUTPUTS_, QFB_NODE_ATTRIBUTES_,
    QFB_NODE_RULE_, QFB_NODE_NAME_, QFB_NODE_SCOPE_, QFB_NODE_SOURCE_
};
enum {
    QFB_OBSERVED_OBSERVER_, QFB_OBSERVED_MINIMUM_, QFB_OBSERVED_MAXIMUM_, QFB_OBSERVED_LOW_, QFB_OBSERVED_HIGH_,
    QFB_OBSERVED_SCHEME_
};
enum {
    QFB_Q_SCALE_, QFB_Q_ZERO_, QFB_Q_MIN_, QFB_Q_MAX_, QFB_Q_AXIS_, QFB_Q_SCALE_DTYPE_, QFB_Q_OBSERVED_,
    QFB_Q_ZERO_FLOAT_, QFB_Q_BLOCKS_, QFB_Q_SCALE_NAME_, QFB_Q_ZERO_NAME_
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
    static const qfb_field_ attribute[] = {
        {QFB_STRING_, 4, 0, 1}, {QFB_SCALAR_, 1, 0, 0}, {QFB_SCALAR_, 8, 0, 0}, {QFB_SCALAR_, 8, 0, 0},
        {QFB_STRING_, 4, 0, 0}, {QFB_SCALARS_, 8, 0, 0}, {QFB_SCALARS_, 8, 0, 0}, {QFB_STRINGS_, 4, 0, 0}};
    static const qfb_field_ blocks[] = {
        {QFB_SCALARS_, 8, 0, 1}, {QFB_SCALAR_, 4, 0, 0}, {QFB_SCALAR_, 4, 0, 0}, {QFB_SCALAR_, 1, 0, 0}};
    static const qfb_field_ buffer[] = {{QFB_SCALAR_, 8, 0, 0}, {QFB_SCALAR_, 8, 0, 0}, {QFB_STRUCT_, 32, 0, 1}};
    static const qfb_field_ graph[] = {
        {QFB_TABLES_, 4, QFB_T_TENSOR_, 1}, {QFB_TABLES_, 4, QFB_T_NODE_, 1}, {QFB_SCALARS_, 4, 0, 1},
        {QFB_SCALARS_, 4, 0, 1}, {QFB_STRING_, 4, 0, 0}};
    static const qfb_field_ pair[] = {{QFB_STRING_, 4, 0, 1}, {QFB_STRING_, 4, 0, 1}};
    static const qfb_field_ model[] = {
        {QFB_SCALAR_, 4, 0, 0}, {QFB_STRINGS_, 4, 0, 0}, {QFB_TABLE_, 4, QFB_T_GRAPH_, 1},
        {QFB_TABLES_, 4, QFB_T_BUFFER_, 1}, {QFB_STRING_, 4, 0, 0}, {QFB_STRING_, 4, 0, 0},
        {QFB_TABLES_, 4, QFB_T_PAIR_, 0}, {QFB_TABLES_, 4, QFB_T_PAIR_, 0}, {QFB_TABLES_, 4, QFB_T_VECTOR_, 0}};
    static const qfb_field_ node[] = {
        {QFB_STRING_, 4, 0, 1}, {QFB_SCALAR_, 4, 0, 0}, {QFB_SCALARS_, 4, 0, 1}, {QFB_SCALARS_, 4, 0, 1},
        {QFB_TABLES_, 4, QFB_T_ATTRIBUTE_, 0}, {QFB_STRING_, 4, 0, 0}, {QFB_STRING_, 4, 0, 0}, {QFB_STRING_, 4, 0, 0},
        {QFB_STRING_, 4, 0, 0}};
    static const qfb_field_ observed[] = {
        {QFB_STRING_, 4, 0, 1}, {QFB_SCALARS_, 8, 0, 1}, {QFB_SCALARS_, 8, 0, 1}, {QFB_SCALAR_, 8, 0, 0},
        {QFB_SCALAR_, 8, 0, 0}, {QFB_STRING_, 4, 0, 0}};
    static const qfb_field_ quantization[] = {
        {QFB_SCALARS_, 8, 0, 1}, {QFB_SCALARS_, 4, 0, 1}, {QFB_SCALAR_, 8, 0, 0}, {QFB_SCALAR_, 8, 0, 0},
        {QFB_SCALAR_, 4, 0, 0}, {QFB_SCALAR_, 1, 0, 0}, {QFB_TABLE_, 4, QFB_T_OBSERVED_, 0}, {QFB_SCALARS_, 8, 0, 0},
        {QFB_TABLE_, 4, QFB_T_BLOCKS_, 0}, {QFB_STRING_, 4, 0, 0}, {QFB_STRING_, 4, 0, 0}};
    static const qfb_field_ tensor[] = {
        {QFB_STRING_, 4, 0, 1}, {QFB_SCALAR_, 1, 0, 0}, {QFB_SCALARS_, 8, 0, 0}, {QFB_STRINGS_, 4, 0, 0},
        {QFB_SCALAR_, 4, 0, 0}, {QFB_TABLE_, 4, QFB_T_QUANTIZATION_, 0}, {QFB_STRINGS_, 4, 0, 0}};
    static const qfb_field_ value[] = {{QFB_SCALARS_, 8, 0, 1}, {QFB_SCALAR_, 4, 0, 0}};
    static const qfb_field_ vector[] = {
        {QFB_STRING_, 4, 0, 0}, {QFB_TABLES_, 4, QFB_T_VALUE_, 1}, {QFB_TABLES_, 4, QFB_T_VALUE_, 1}};
    static const qfb_table_ tables[] = {
        {attribute, 8}, {blocks, 4}, {buffer, 3}, {graph, 5}, {pair, 2}, {model, 9}, {node, 9}, {observed, 6},
        {quantization, 11}, {tensor, 7}, {value, 2}, {vector, 3}};
    return tables[table];
}

/* ---- The walk over the structure (rule F6) ---- */

enum { QFB_REPETITIONS_ = 64, QFB_REMEMBERED_ = 256 };

typedef struct {
    qfb_file *file;
    uint64_t budget;                /* bytes that may still be walked over: what is shared can be met again and again */
    uint64_t seen[QFB_REMEMBERED_]; /* shared strings and tables that were found good: kind and position */
} qfb_walk_;

static inline qfb_code qfb_broken_(qfb_file *file, uint64_t at, const char *what)
{
    return qfb_fail_(file, QFB_BROKEN, "F6", "byte", at, what);
}

static inline qfb_code qfb_spend_(qfb_walk_ *walk, uint64_t bytes, uint32_t at)
{
    if (bytes > walk->budget)
        return qfb_broken_(walk->file, at, "the same tables, vectors or data are referred to too often");
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

/* Whether a string or table was walked over before; from now on it was. */
static inline int qfb_is_known_(qfb_walk_ *walk, uint32_t kind, uint32_t at)
{
    uint64_t key = (uint64_t)(kind + 1) << 32 | at;
    uint64_t *place = &walk->seen[(at / 4 + kind * 31) % QFB_REMEMBERED_];
    if (*place == key)
        return 1;
    *place = key;
    return 0;
}

static inline qfb_code qfb_walk_string_(qfb_walk_ *walk, uint32_t at)
{
    qfb_file *file = walk->file;
    uint32_t count;
    if (qfb_is_known_(walk, 255, at))
        return QFB_OK;
    if (qfb_walk_vector_(walk, at, 1))
        return file->error.code;
    count = qfb_u32_(file->bytes + at);
    if (count >= file->meta_size - at - 4 || file->bytes[at + 4 + count])
        return qfb_broken_(file, at, "a string does not end with a zero byte");
    if (!qfb_is_utf8_(file->bytes + at + 4, count))
        return qfb_broken_(file, at, "a string is not UTF-8");
    if (count && memchr(file->bytes + at + 4, 0, count))
        return qfb_fail_(file, QFB_INVALID, "V36", "byte", at, "a string contains a zero byte");
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

/* A table and all below it. The schema is not recursive: it is five tables deep. */
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

/* ---- Fields of tables that the walk has found good ---- */

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

/* ---- Element types ---- */

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

/* Whether the double of these bits is finite and exactly a value of a type that scales may have. */
static inline int qfb_is_exact_(uint64_t bits, qfb_dtype dtype)
{
    uint64_t fraction = bits & 0xfffffffffffff;
    int exponent = (int)(bits >> 52 & 0x7ff), digits = 0, top;
    if (exponent == 0x7ff)
        return 0;
    if (dtype == QFB_FLOAT64)
        return 1;
    if (!exponent && !fraction)
        return dtype != QFB_FLOAT8_E8M0FNU;
    if (exponent)
        fraction |= (uint64_t)1 << 52;
    else
        exponent = 1;
    for (exponent -= 1075; !(fraction & 1); exponent++)
        fraction >>= 1;
    for (; fraction >> digits; digits++) {
    }
    top = exponent + digits - 1; /* the value is odd * 2^exponent, and lies in [2^top, 2^(top + 1)) */
    switch (dtype) {
    case QFB_FLOAT32: return digits <= 24 && exponent >= -149 && top <= 127;
    case QFB_BFLOAT16: return digits <= 8 && exponent >= -133 && top <= 127;
    case QFB_FLOAT16: return digits <= 11 && exponent >= -24 && top <= 15;
    case QFB_FLOAT8_E8M0FNU: return digits == 1 && top >= -127 && top <= 127 && !(bits >> 63);
    default: return 0;
    }
}

/* Whether a scale is greater than 0 and finite, and stays so when it is rounded to float32. */
static inline int qfb_is_scale_(uint64_t bits)
{
    return bits > (uint64_t)873 << 52 && bits < ((uint64_t)1150 << 52 | (((uint64_t)1 << 52) - ((uint64_t)1 << 28)));
}

/* An order of the bits of doubles that are not NaN which is that of their values. */
static inline int64_t qfb_order_(uint64_t bits)
{
    int64_t size = (int64_t)(bits & INT64_MAX);
    return bits >> 63 ? -size : size;
}

static inline int qfb_is_nan_(uint64_t bits) { return (bits & INT64_MAX) > (uint64_t)0x7ff << 52; }

/* ---- The rules of tensors (V1 to V28), each checked once, when a file is opened ---- */

static inline qfb_code qfb_invalid_(qfb_file *file, const char *rule, uint32_t tensor, const char *what)
{
    return qfb_fail_(file, rule[0] == 'V' ? QFB_INVALID : QFB_BROKEN, rule, "tensor", tensor, what);
}

static inline qfb_code qfb_get_buffer(qfb_file *file, uint32_t index, qfb_array *array)
{
    uint32_t at;
    if (index >= qfb_count_(file, file->buffers))
        return qfb_fail_(file, QFB_MISSING, "F7", "buffer", index, "there is no such buffer");
    at = qfb_element_(file, file->buffers, index);
    array->data = file->data + qfb_ulong_(file, at, 0), array->size = qfb_ulong_(file, at, 1), array->buffer = index;
    return QFB_OK;
}

/* The bytes that an array of known sizes needs. Its sizes were found good by rule V3. */
static inline uint64_t qfb_needed_(const qfb_list *shape, uint32_t bits)
{
    uint64_t elements = 1;
    uint32_t i;
    for (i = 0; i < shape->count; i++)
        if (!qfb_integer(shape, i))
            return 0;
    for (i = 0; i < shape->count; i++)
        elements *= (uint64_t)qfb_integer(shape, i);
    return bits < 8 ? (elements * bits + 7) / 8 : elements * (bits / 8);
}

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

static inline qfb_code qfb_check_scales_(qfb_file *file, uint32_t index, const qfb_quantization *q)
{
    qfb_dtype d = q->scale_dtype;
    uint32_t i;
    if (d != QFB_FLOAT16 && d != QFB_BFLOAT16 && d != QFB_FLOAT32 && d != QFB_FLOAT64 && d != QFB_FLOAT8_E8M0FNU)
        return qfb_invalid_(file, "V20", index, "scale_dtype is not a type for scales");
    if (q->block_shape.present ? q->scale.count != 0 : q->scale.count == 0)
        return qfb_invalid_(file, "V20", index, "there are both scales and blocks, or neither");
    for (i = 0; i < q->scale.count; i++)
        if (!qfb_is_scale_(qfb_bits(&q->scale, i)) || !qfb_is_exact_(qfb_bits(&q->scale, i), d))
            return qfb_invalid_(
                file, "V20", index, "a scale is not finite, not greater than 0, or not representable in scale_dtype");
    return QFB_OK;
}

static inline qfb_code qfb_check_axis_(qfb_file *file, uint32_t index, const qfb_tensor *tensor)
{
    const qfb_quantization *q = &tensor->quantization;
    int64_t size;
    if (q->axis < 0)
        return q->scale.count > 1 ? qfb_invalid_(file, "V21", index, "more than one scale without an axis") : QFB_OK;
    if (q->block_shape.present || (tensor->shape.present && q->axis >= (int64_t)tensor->shape.count))
        return qfb_invalid_(file, "V21", index, "the axis is not a dimension of the tensor");
    size = tensor->shape.present ? qfb_integer(&tensor->shape, (uint32_t)q->axis) : -1;
    if (size >= 0 && size != (int64_t)q->scale.count)
        return qfb_invalid_(file, "V21", index, "the numbers of scales and of slices along the axis differ");
    return QFB_OK;
}

static inline qfb_code qfb_check_zero_points_(qfb_file *file, uint32_t index, const qfb_tensor *tensor)
{
    const qfb_quantization *q = &tensor->quantization;
    const qfb_dtype_info *info = qfb_dtype_of(tensor->dtype);
    uint32_t i, count = q->zero_point_float.present ? q->zero_point_float.count : q->zero_point.count;
    uint32_t wanted = q->block_shape.present ? q->block_zero_point_dtype == 0 : q->scale.count;
    if (q->zero_point_float.present && q->zero_point.count)
        return qfb_invalid_(file, "F12", index, "both zero_point and zero_point_float are present");
    if (count != wanted)
        return qfb_invalid_(file, "V22", index, "the numbers of zero points and scales differ");
    for (i = 0; i < q->zero_point_float.count; i++)
        if (!qfb_is_integer_type(tensor->dtype) || !qfb_is_exact_(qfb_bits(&q->zero_point_float, i), q->scale_dtype))
            return qfb_invalid_(file, "V22", index, "a zero point is not finite, or not representable in scale_dtype");
    for (i = 0; i < q->zero_point.count; i++) {
        int64_t z = qfb_integer(&q->zero_point, i);
        if (qfb_is_integer_type(tensor->dtype) ? z < info->low || z > info->high : z != 0)
            return qfb_invalid_(file, "V22", index, "a zero point is outside the range of the element type");
    }
    return QFB_OK;
}

static inline qfb_code qfb_check_observed_(qfb_file *file, uint32_t index, const qfb_quantization *q)
{
    uint32_t i, count = q->observed_minimum.count, scales = q->scale.count ? q->scale.count : 1;
    if (!q->observed_minimum.present)
        return QFB_OK;
    if (!q->observer.size)
        return qfb_invalid_(file, "V25", index, "the observer has no name");
    if (count != q->observed_maximum.count || (count != 1 && count != scales))
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

static inline qfb_code qfb_check_blocks_(qfb_file *file, uint32_t index, const qfb_tensor *tensor)
{
    const qfb_quantization *q = &tensor->quantization;
    uint64_t blocks = 1, bits = qfb_dtype_of(q->scale_dtype)->bits;
    uint32_t i, several = 0, of_many = 0;
    if (!q->block_shape.present)
        return QFB_OK;
    if (!q->block_shape.count || !tensor->shape.present || q->block_shape.count != tensor->shape.count)
        return qfb_invalid_(file, "V27", index, "the numbers of block sizes and dimensions differ");
    for (i = 0; i < q->block_shape.count; i++) {
        int64_t size = qfb_integer(&tensor->shape, i), block = qfb_integer(&q->block_shape, i);
        if (block < 1 || block > size)
            return qfb_invalid_(file, "V27", index, "a block size is less than 1, or greater than the tensor");
        blocks *= (uint64_t)((size - 1) / block + 1);
        several += block < size, of_many += block < size && block != 1;
    }
    if (q->block_scale.size != blocks * bits / 8)
        return qfb_invalid_(file, "V27", index, "the scales of the blocks have the wrong number of bytes");
    if (q->block_zero_point_dtype) {
        bits = qfb_dtype_of(q->block_zero_point_dtype)->bits;
        if ((q->block_zero_point_dtype != tensor->dtype && q->block_zero_point_dtype != q->scale_dtype) ||
            !qfb_is_integer_type(tensor->dtype) ||
            q->block_zero_point.size != (bits < 8 ? (blocks * bits + 7) / 8 : blocks * (bits / 8)))
            return qfb_invalid_(file, "V27", index, "the zero points of the blocks have the wrong type or size");
    }
    if (several < 2 && !of_many)
        return qfb_invalid_(file, "V28", index, "the blocks are not needed: one scale, or one per slice, is enough");
    return QFB_OK;
}

static inline qfb_code qfb_check_quantization_(qfb_file *file, uint32_t index, const qfb_tensor *tensor)
{
    const qfb_quantization *q = &tensor->quantization;
    const qfb_dtype_info *info = qfb_dtype_of(tensor->dtype);
    if (qfb_check_scales_(file, index, q) || qfb_check_axis_(file, index, tensor) ||
        qfb_check_zero_points_(file, index, tensor) || qfb_check_observed_(file, index, q) ||
        qfb_check_blocks_(file, index, tensor))
        return file->error.code;
    if (info->high == 0 || info->bits > 32)
        return qfb_invalid_(file, "V24", index, "the element type cannot be quantized");
    if (q->quant_min < info->low || q->quant_min > q->quant_max || q->quant_max > info->high)
        return qfb_invalid_(file, "V23", index, "[quant_min, quant_max] is not a range of the element type");
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

/* ---- Tables as structs ---- */

static inline qfb_code qfb_read_blocks_(qfb_file *file, uint32_t index, uint32_t at, qfb_quantization *q)
{
    uint32_t zero_dtype = qfb_ubyte_(file, at, QFB_BLOCKS_ZERO_DTYPE_, 0);
    int has_zero = qfb_at_(file, at, QFB_BLOCKS_ZERO_) != 0;
    q->block_shape = qfb_list_(file, at, QFB_BLOCKS_SHAPE_, 8);
    if (!qfb_at_(file, at, QFB_BLOCKS_SCALE_) || has_zero != (zero_dtype != 0))
        return qfb_invalid_(file, "F12", index, "blocks lack scales, or the type of their zero points");
    if (zero_dtype && !qfb_dtype_of(zero_dtype)) {
        qfb_invalid_(file, "V2", index, "the type of the blocks' zero points is not known");
        return qfb_unknown_(file, "", zero_dtype);
    }
    q->block_zero_point_dtype = (qfb_dtype)zero_dtype;
    if (qfb_get_buffer(file, qfb_uint_(file, at, QFB_BLOCKS_SCALE_, 0), &q->block_scale) ||
        (has_zero && qfb_get_buffer(file, qfb_uint_(file, at, QFB_BLOCKS_ZERO_, 0), &q->block_zero_point)))
        return qfb_invalid_(file, "F7", index, "there is no such buffer");
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

static inline qfb_code qfb_read_quantization_(qfb_file *file, uint32_t index, uint32_t at, qfb_quantization *q)
{
    uint32_t scale_dtype = qfb_ubyte_(file, at, QFB_Q_SCALE_DTYPE_, QFB_FLOAT32);
    uint32_t observed = qfb_to_(file, at, QFB_Q_OBSERVED_), blocks = qfb_to_(file, at, QFB_Q_BLOCKS_);
    q->scale = qfb_list_(file, at, QFB_Q_SCALE_, 8);
    q->zero_point = qfb_list_(file, at, QFB_Q_ZERO_, 4);
    q->zero_point_float = qfb_list_(file, at, QFB_Q_ZERO_FLOAT_, 8);
    q->scale_name = qfb_string_(file, at, QFB_Q_SCALE_NAME_);
    q->zero_point_name = qfb_string_(file, at, QFB_Q_ZERO_NAME_);
    q->axis = qfb_at_(file, at, QFB_Q_AXIS_) ? (int64_t)qfb_uint_(file, at, QFB_Q_AXIS_, 0) : -1;
    if (!qfb_at_(file, at, QFB_Q_MIN_) || !qfb_at_(file, at, QFB_Q_MAX_))
        return qfb_invalid_(file, "F12", index, "a quantization lacks quant_min or quant_max");
    q->quant_min = qfb_signed_(qfb_ulong_(file, at, QFB_Q_MIN_), 64);
    q->quant_max = qfb_signed_(qfb_ulong_(file, at, QFB_Q_MAX_), 64);
    if (!qfb_dtype_of(scale_dtype)) {
        qfb_invalid_(file, "V2", index, "the type of the scales is not known");
        return qfb_unknown_(file, "", scale_dtype);
    }
    q->scale_dtype = (qfb_dtype)scale_dtype;
    if (observed)
        qfb_read_observed_(file, observed, q);
    return blocks ? qfb_read_blocks_(file, index, blocks, q) : QFB_OK;
}

static inline qfb_code qfb_read_tensor_(qfb_file *file, uint32_t index, qfb_tensor *tensor)
{
    uint32_t at = qfb_element_(file, file->tensors, index), dtype = qfb_ubyte_(file, at, QFB_TENSOR_DTYPE_, 0);
    uint32_t quantization = qfb_to_(file, at, QFB_TENSOR_QUANTIZATION_);
    memset(tensor, 0, sizeof *tensor);
    tensor->quantization.axis = -1;
    tensor->quantization.scale_name.text = tensor->quantization.zero_point_name.text = "";
    tensor->quantization.observer.text = tensor->quantization.qscheme.text = "";
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

/* The index of the tensor of a name, found by halves; -1 if there is none. */
static inline int64_t qfb_tensor_index(const qfb_file *file, const char *name, size_t size)
{
    uint32_t low = 0, high = qfb_tensor_count(file);
    while (low < high) {
        uint32_t middle = low + (high - low) / 2;
        qfb_string found = qfb_string_(file, qfb_element_(file, file->tensors, middle), QFB_TENSOR_NAME_);
        int order = memcmp(found.text, name, found.size < size ? found.size : size);
        if (!order && found.size == size)
            return middle;
        if (order < 0 || (!order && found.size < size))
            low = middle + 1;
        else
            high = middle;
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
    *key = qfb_string_(file, at, 0), *value = qfb_string_(file, at, 1);
}
static inline void qfb_get_metadata(const qfb_file *file, uint32_t index, qfb_string *key, qfb_string *value)
{
    uint32_t at = qfb_element_(file, file->metadata, index);
    *key = qfb_string_(file, at, 0), *value = qfb_string_(file, at, 1);
}

/* Test vectors: values of the inputs of the graph, and what the outputs are for them. */
static inline uint32_t qfb_vector_count(const qfb_file *file) { return qfb_count_(file, file->vectors); }
static inline qfb_string qfb_vector_name(const qfb_file *file, uint32_t vector)
{
    return qfb_string_(file, qfb_element_(file, file->vectors, vector), 0);
}
/* What the graph's input (or, if `is_output`, output) at `index` is in a vector; all indices of elements that exist. */
static inline qfb_code qfb_get_value(qfb_file *file, uint32_t vector, int is_output, uint32_t index, qfb_value *value)
{
    uint32_t values = qfb_to_(file, qfb_element_(file, file->vectors, vector), is_output ? 2 : 1), at;
    if (index >= qfb_count_(file, values))
        return qfb_fail_(file, QFB_MISSING, "", "vector", vector, "has no such value");
    at = qfb_element_(file, values, index);
    value->shape = qfb_list_(file, at, 0, 8);
    if (!qfb_at_(file, at, 1))
        return qfb_fail_(file, QFB_BROKEN, "F12", "vector", vector, "a value has no buffer");
    return qfb_get_buffer(file, qfb_uint_(file, at, 1, 0), &value->array);
}

/* ---- Opening ---- */

static inline qfb_code qfb_check_header_(qfb_file *file)
{
    const uint8_t *p = file->bytes;
    uint64_t header_size, meta_size, data_offset, i;
    if (file->size < 8 || memcmp(p + 4, "QFB", 3))
        return qfb_fail_(file, QFB_NOT_QFB, "F1", "byte", 4, "is not a .qfb file");
    if (p[7] != '1')
        return qfb_fail_(file, QFB_NEWER, "F1", "byte", 7, "has a different major version; this reader supports 1");
    if (file->size < QFB_HEADER_SIZE)
        return qfb_fail_(file, QFB_BROKEN, "F3", "byte", file->size, "ends inside the header");
    if (memcmp(p + 8, "qh01", 4))
        return qfb_fail_(file, QFB_BROKEN, "F1", "byte", 8, "the header tag is not qh01");
    if (qfb_u32_(p + 48)) {
        qfb_fail_(file, QFB_NEWER, "F10", "byte", 48, "requires flags that this reader does not support");
        return qfb_unknown_(file, "", qfb_u32_(p + 48));
    }
    for (i = 56; i < 128; i += i == 63 ? 33 : 1)
        if (p[i])
            return qfb_fail_(file, QFB_BROKEN, "F2", "byte", i, "a reserved byte of the header is not zero");
    header_size = qfb_u32_(p + 12), meta_size = qfb_u64_(p + 16), data_offset = qfb_u64_(p + 24);
    file->data_size = qfb_u64_(p + 32);
    if (header_size < QFB_HEADER_SIZE || header_size % 8 || header_size > meta_size || meta_size > 0x7fffffff)
        return qfb_fail_(file, QFB_BROKEN, "F3", "byte", 12, "the sizes of header and metadata are not valid");
    if (data_offset != (meta_size + QFB_PAGE - 1) / QFB_PAGE * QFB_PAGE)
        return qfb_fail_(
            file, QFB_BROKEN, "F3", "byte", 24, "the data does not begin at the multiple of 4096 after the metadata");
    if (file->size < data_offset || file->size - data_offset != file->data_size || qfb_u64_(p + 40) != file->size)
        return qfb_fail_(file, QFB_BROKEN, "F3", "byte", 40, "the file does not have the size that it states");
    file->start = (uint32_t)header_size, file->meta_size = (uint32_t)meta_size, file->data = p + data_offset;
    for (i = meta_size; i < data_offset; i++)
        if (p[i])
            return qfb_fail_(file, QFB_BROKEN, "F5", "byte", i, "the padding before the data is not zero");
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
        uint64_t offset = qfb_ulong_(file, at, 0), size = qfb_ulong_(file, at, 1);
        if (offset % QFB_ALIGNMENT || offset < end || offset - end >= QFB_ALIGNMENT || offset > file->data_size ||
            size > file->data_size - offset)
            return qfb_fail_(file, QFB_BROKEN, "F8", "buffer", i, "has an invalid position");
        end = offset + size;
    }
    if (end != file->data_size)
        return qfb_fail_(file, QFB_BROKEN, "F8", "file", 0, "the data does not end with the last buffer");
    return QFB_OK;
}

/* The sha256 that the file states for a buffer of it: 32 bytes. */
static inline const uint8_t *qfb_digest(const qfb_file *file, uint32_t index)
{
    return file->bytes + qfb_at_(file, qfb_element_(file, file->buffers, index), 2);
}

/* The sha256 of a buffer: QFB_DAMAGED if it is not the one stated. For who did not open with QFB_CHECK_DATA. */
static inline qfb_code qfb_check_buffer(qfb_file *file, uint32_t index)
{
    qfb_array array;
    qfb_sha256_ hash;
    if (qfb_get_buffer(file, index, &array))
        return file->error.code;
    qfb_sha256_begin_(&hash);
    qfb_sha256_add_(&hash, array.data, array.size);
    if (!qfb_sha256_is_(&hash, qfb_digest(file, index)))
        return qfb_fail_(file, QFB_DAMAGED, "F9", "buffer", index, "the data is damaged: its sha256 differs");
    return QFB_OK;
}

/* What is stored for a tensor: bools are 0 or 1, integers lie in their range, unused bits are zero. */
static inline qfb_code qfb_check_values_(
    qfb_file *file, uint32_t index, const qfb_tensor *tensor, qfb_array array, const qfb_list *shape)
{
    const qfb_dtype_info *info = qfb_dtype_of(tensor->dtype);
    int64_t low = tensor->quantization.quant_min, high = tensor->quantization.quant_max;
    uint64_t i, count = array.size * 8 / info->bits, used;
    if (info->bits < 8 && array.size) {
        for (i = 0, used = 1; i < shape->count; i++)
            used = used * (uint64_t)qfb_integer(shape, (uint32_t)i) % (8u / info->bits);
        if (used && array.data[array.size - 1] >> (used * info->bits))
            return qfb_invalid_(file, "V12", index, "bits that no element uses are not zero");
        count = used ? count - 8u / info->bits + used : count;
    }
    for (i = 0; tensor->dtype == QFB_BOOL && i < count; i++)
        if (array.data[i] > 1)
            return qfb_invalid_(file, "V11", index, "a bool is neither 0 nor 1");
    if (!tensor->is_quantized || !qfb_is_integer_type(tensor->dtype) || (low == info->low && high == info->high))
        return QFB_OK;
    for (i = 0; i < count; i++) {
        int64_t value = qfb_stored(array.data, tensor->dtype, i);
        if (value < low || value > high)
            return qfb_invalid_(file, "V26", index, "an integer lies outside [quant_min, quant_max]");
    }
    return QFB_OK;
}

static inline qfb_code qfb_nth_value_(qfb_file *file, uint32_t v, uint32_t index, qfb_tensor *tensor, qfb_value *value);

/* The values of all constants and test vectors. Many of them may share a buffer; in sum they are read so often only. */
static inline qfb_code qfb_check_all_values_(qfb_file *file)
{
    uint32_t i, v, ends = qfb_inputs(file).count + qfb_outputs(file).count;
    qfb_tensor tensor;
    qfb_value value;
    qfb_walk_ walk;
    walk.file = file;
    walk.budget = file->size > UINT64_MAX / QFB_REPETITIONS_ ? UINT64_MAX : QFB_REPETITIONS_ * file->size;
    for (i = 0; i < qfb_tensor_count(file); i++)
        if (qfb_get_tensor(file, i, &tensor) ||
            (tensor.is_constant && (qfb_spend_(&walk, tensor.array.size, 0) ||
                                    qfb_check_values_(file, i, &tensor, tensor.array, &tensor.shape))))
            return file->error.code;
    for (v = 0; v < qfb_vector_count(file); v++)
        for (i = 0; i < ends; i++)
            if (qfb_nth_value_(file, v, i, &tensor, &value) || qfb_spend_(&walk, value.array.size, 0))
                return file->error.code;
            else if (qfb_check_values_(file, v, &tensor, value.array, &value.shape))
                return qfb_fail_(file, file->error.code, file->error.rule, "vector", v, file->error.what);
    return QFB_OK;
}

/* Every buffer, the zeros before it, and the values in it. */
static inline qfb_code qfb_check_data(qfb_file *file)
{
    uint64_t end = 0;
    uint32_t i;
    for (i = 0; i < qfb_buffer_count(file); i++) {
        qfb_array array;
        if (qfb_check_buffer(file, i) || qfb_get_buffer(file, i, &array))
            return file->error.code;
        for (; file->data + end < array.data; end++)
            if (file->data[end])
                return qfb_fail_(file, QFB_BROKEN, "F8", "buffer", i, "a byte before it is not zero");
        end += array.size;
    }
    return qfb_check_all_values_(file);
}

static inline qfb_code qfb_check_tensors_(qfb_file *file)
{
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
        if (tensor.is_quantized && qfb_check_quantization_(file, i, &tensor))
            return file->error.code;
    }
    return QFB_OK;
}

enum { QFB_MARKS_ = 8192 };

/* Mark a buffer among QFB_MARKS_ of them. */
static inline void qfb_mark_(uint8_t *marks, uint64_t first, uint32_t buffer)
{
    if (buffer >= first && buffer - first < QFB_MARKS_)
        marks[(buffer - first) / 8] |= (uint8_t)(1u << (buffer - first) % 8);
}

/* Every buffer belongs to a tensor, its blocks or a test vector (rule F13). */
static inline qfb_code qfb_check_used_(qfb_walk_ *walk)
{
    qfb_file *file = walk->file;
    uint8_t marks[QFB_MARKS_ / 8];
    uint32_t i, v, end, k, count = qfb_buffer_count(file);
    uint64_t first;
    for (first = 0; first < count; first += QFB_MARKS_) {
        memset(marks, 0, sizeof marks);
        if (qfb_spend_(walk, first ? (uint64_t)8 * qfb_tensor_count(file) : 0, 0))
            return file->error.code;
        for (i = 0; i < qfb_tensor_count(file); i++) {
            uint32_t tensor = qfb_element_(file, file->tensors, i), blocks;
            uint32_t quantization = qfb_to_(file, tensor, QFB_TENSOR_QUANTIZATION_);
            qfb_mark_(marks, first, qfb_uint_(file, tensor, QFB_TENSOR_BUFFER_, UINT32_MAX));
            blocks = quantization ? qfb_to_(file, quantization, QFB_Q_BLOCKS_) : 0;
            if (blocks) {
                qfb_mark_(marks, first, qfb_uint_(file, blocks, QFB_BLOCKS_SCALE_, UINT32_MAX));
                qfb_mark_(marks, first, qfb_uint_(file, blocks, QFB_BLOCKS_ZERO_, UINT32_MAX));
            }
        }
        for (v = 0; v < qfb_vector_count(file); v++)
            for (end = 1; end <= 2; end++) {
                uint32_t values = qfb_to_(file, qfb_element_(file, file->vectors, v), (int)end);
                if (qfb_spend_(walk, first ? qfb_count_(file, values) : 0, 0))
                    return file->error.code;
                for (k = 0; k < qfb_count_(file, values); k++)
                    qfb_mark_(marks, first, qfb_uint_(file, qfb_element_(file, values, k), 1, UINT32_MAX));
            }
        for (i = (uint32_t)first; i < count && i - first < QFB_MARKS_; i++)
            if (!(marks[(i - first) / 8] >> (i - first) % 8 & 1))
                return qfb_fail_(file, QFB_BROKEN, "F13", "buffer", i, "is not used");
    }
    return QFB_OK;
}

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
    for (i = 0; i < node->attribute_count; i++) {
        qfb_get_attribute(file, node, i, &a);
        at = qfb_element_(file, node->attributes, i);
        if (i && qfb_compare(before, a.name) >= 0)
            return qfb_fail_(file, QFB_BROKEN, "F11", "node", index, "the attributes are not in order");
        before = a.name;
        if (a.type < QFB_INT || a.type > QFB_STRINGS)
            return qfb_fail_(file, QFB_BROKEN, "F12", "node", index, "an attribute has an unknown type");
        if ((a.type == QFB_STRING && !qfb_at_(file, at, QFB_ATTRIBUTE_STRING_)) ||
            (a.type >= QFB_INTS && !a.list.present))
            return qfb_fail_(file, QFB_BROKEN, "F12", "node", index, "an attribute has no value");
    }
    return QFB_OK;
}

static inline qfb_code qfb_check_nodes_(qfb_file *file)
{
    qfb_node node;
    uint32_t i;
    if (!qfb_are_tensors_(file, qfb_inputs(file), 0) || !qfb_are_tensors_(file, qfb_outputs(file), 0))
        return qfb_fail_(
            file, QFB_BROKEN, "F7", "file", 0, "an input or output of the graph is not one of its tensors");
    for (i = 0; i < qfb_node_count(file); i++) {
        if (qfb_get_node(file, i, &node))
            return file->error.code;
        if (!qfb_are_tensors_(file, node.inputs, -1) || !qfb_are_tensors_(file, node.outputs, 0))
            return qfb_fail_(file, QFB_BROKEN, "F7", "node", i, "an input or output is not a tensor");
        if (qfb_check_attributes_(file, i, &node))
            return file->error.code;
    }
    return QFB_OK;
}

static inline qfb_code qfb_check_pairs_(qfb_file *file, uint32_t pairs)
{
    uint32_t i;
    for (i = 1; i < qfb_count_(file, pairs); i++)
        if (qfb_compare(qfb_string_(file, qfb_element_(file, pairs, i - 1), 0),
                        qfb_string_(file, qfb_element_(file, pairs, i), 0)) >= 0)
            return qfb_fail_(file, QFB_BROKEN, "F11", "file", 0, "the keys of source or metadata are not in order");
    return QFB_OK;
}

/* Whether two dimensions have the same name; only where both have one. */
static inline int qfb_is_same_size_(const qfb_tensor *a, uint32_t i, const qfb_tensor *b, uint32_t k)
{
    return a->dims.count && b->dims.count && qfb_text(&a->dims, i).size &&
           !qfb_compare(qfb_text(&a->dims, i), qfb_text(&b->dims, k));
}

/* The value at `index` of a vector, counted over inputs and outputs together, and the tensor that it is one of. */
static inline qfb_code qfb_nth_value_(qfb_file *file, uint32_t v, uint32_t index, qfb_tensor *tensor, qfb_value *value)
{
    qfb_list inputs = qfb_inputs(file), outputs = qfb_outputs(file);
    int is_output = index >= inputs.count;
    uint32_t i = is_output ? index - inputs.count : index;
    if (qfb_get_value(file, v, is_output, i, value)) {
        if (file->error.code == QFB_MISSING)
            qfb_fail_(file, QFB_BROKEN, "F7", "vector", v, "there is no such buffer");
        return file->error.code;
    }
    return qfb_get_tensor(file, (uint32_t)qfb_integer(is_output ? &outputs : &inputs, i), tensor);
}

/* A value of a test vector against those before it: sizes of one name are equal, and so are values of one tensor. */
static inline qfb_code qfb_check_pair_(qfb_walk_ *walk, uint32_t v, uint32_t index, uint32_t other)
{
    qfb_file *file = walk->file;
    uint32_t i, k, same_end = (index >= qfb_inputs(file).count) == (other >= qfb_inputs(file).count), differ;
    qfb_tensor a, b;
    qfb_value x, y;
    if (qfb_nth_value_(file, v, index, &a, &x) || qfb_nth_value_(file, v, other, &b, &y) ||
        qfb_spend_(walk, (uint64_t)(x.shape.count + 1) * (y.shape.count + 1), 0))
        return file->error.code;
    differ = x.array.buffer != y.array.buffer || x.shape.count != y.shape.count;
    for (i = 0; i < x.shape.count; i++) {
        differ = differ || qfb_integer(&x.shape, i) != qfb_integer(&y.shape, i);
        for (k = 0; a.shape.present && k < y.shape.count && b.shape.present; k++)
            if (qfb_is_same_size_(&a, i, &b, k) && qfb_integer(&x.shape, i) != qfb_integer(&y.shape, k))
                return qfb_fail_(file, QFB_INVALID, "V51", "vector", v, "sizes with the same name differ");
    }
    if (same_end && differ && index != other && !qfb_compare(a.name, b.name))
        return qfb_fail_(file, QFB_INVALID, "V50", "vector", v, "a tensor has two values");
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
        qfb_check_quantization_(file, v, &constant);
    if (!file->error.code && value.array.size != qfb_needed_(&value.shape, qfb_dtype_of(tensor.dtype)->bits))
        return qfb_fail_(file, QFB_INVALID, "V10", "vector", v, "the size of a value does not fit type and shape");
    if (file->error.code) {
        file->error.place = "vector";
        return file->error.code;
    }
    if (tensor.shape.present && tensor.shape.count != value.shape.count)
        return qfb_fail_(file, QFB_INVALID, "V51", "vector", v, "a value has the wrong number of dimensions");
    for (i = 0; tensor.shape.present && i < tensor.shape.count; i++)
        if (qfb_integer(&tensor.shape, i) != -1 && qfb_integer(&tensor.shape, i) != qfb_integer(&value.shape, i))
            return qfb_fail_(file, QFB_INVALID, "V51", "vector", v, "a value does not have the sizes of its tensor");
    return QFB_OK;
}

static inline qfb_code qfb_check_vectors_(qfb_walk_ *walk)
{
    qfb_file *file = walk->file;
    uint32_t inputs = qfb_inputs(file).count, outputs = qfb_outputs(file).count, v, i, k;
    for (v = 0; v < qfb_vector_count(file); v++) {
        uint32_t at = qfb_element_(file, file->vectors, v);
        if (qfb_count_(file, qfb_to_(file, at, 1)) != inputs || qfb_count_(file, qfb_to_(file, at, 2)) != outputs ||
            !(inputs || outputs || qfb_node_count(file)))
            return qfb_fail_(
                file, QFB_INVALID, "V50", "vector", v, "does not have one value for each input and output");
        for (i = 0; i < inputs + outputs; i++) {
            if (qfb_check_value_(walk, v, i))
                return file->error.code;
            for (k = 0; k <= i; k++)
                if (qfb_check_pair_(walk, v, i, k))
                    return file->error.code;
        }
    }
    return QFB_OK;
}

#ifdef QFB_POSIX /* define it, and _POSIX_C_SOURCE as 200809L or more, before anything is included */
#include <errno.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

/* Map a file into memory, to be read only; NULL if that cannot be done, for the reason in errno, which is 0 for a file
 * that is empty or not a regular one. */
static inline const void *qfb_map(const char *path, uint64_t *size)
{
    struct stat found;
    void *mapped = MAP_FAILED;
    int file = open(path, O_RDONLY | O_NONBLOCK); /* a FIFO is not waited for */
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

static inline void qfb_unmap(const void *bytes, uint64_t size) { munmap((void *)(uintptr_t)bytes, (size_t)size); }
#endif

/* Open the `size` bytes of a file. They must not change while it is used. Flags: QFB_SKIP_DIGESTS, QFB_CHECK_DATA.
 * Without QFB_CHECK_DATA only the metadata are read; call qfb_check_buffer before you trust a constant. */
static inline qfb_code qfb_open(qfb_file *file, const void *bytes, uint64_t size, unsigned flags)
{
    qfb_walk_ walk;
    qfb_list features;
    memset(file, 0, sizeof *file);
    file->bytes = (const uint8_t *)bytes, file->size = size;
    qfb_fail_(file, QFB_OK, "", "file", 0, "");
    if (qfb_check_header_(file) || (!(flags & QFB_SKIP_DIGESTS) && qfb_check_digest_(file)))
        return file->error.code;
    memset(&walk, 0, sizeof walk);
    walk.file = file, walk.budget = (uint64_t)QFB_REPETITIONS_ * file->meta_size;
    if (qfb_target_(file, 0, &file->model) || qfb_walk_table_(&walk, QFB_T_MODEL_, file->model))
        return file->error.code;
    features = qfb_list_(file, file->model, QFB_MODEL_FEATURES_, 4);
    if (features.count) {
        qfb_fail_(file, QFB_NEWER, "F10", "file", 0, "requires features that this reader does not support");
        return qfb_unknown_(file, qfb_text(&features, 0).text, 0);
    }
    file->graph = qfb_to_(file, file->model, QFB_MODEL_GRAPH_);
    file->buffers = qfb_to_(file, file->model, QFB_MODEL_BUFFERS_);
    file->sources = qfb_to_(file, file->model, QFB_MODEL_SOURCE_);
    file->metadata = qfb_to_(file, file->model, QFB_MODEL_METADATA_);
    file->vectors = qfb_to_(file, file->model, QFB_MODEL_VECTORS_);
    file->tensors = qfb_to_(file, file->graph, QFB_GRAPH_TENSORS_);
    file->nodes = qfb_to_(file, file->graph, QFB_GRAPH_NODES_);
    file->inputs = qfb_to_(file, file->graph, QFB_GRAPH_INPUTS_);
    file->outputs = qfb_to_(file, file->graph, QFB_GRAPH_OUTPUTS_);
    if (qfb_check_layout_(file) || qfb_check_tensors_(file) || qfb_check_nodes_(file) ||
        qfb_check_pairs_(file, file->sources) || qfb_check_pairs_(file, file->metadata) || qfb_check_vectors_(&walk) ||
        qfb_check_used_(&walk))
        return file->error.code;
    return flags & QFB_CHECK_DATA && !(flags & QFB_SKIP_DIGESTS) ? qfb_check_data(file) : QFB_OK;
}

#endif

/* What the operators share: the node at hand, its operands and attributes, elements, and views.
 *
 * An operator is two functions. `plan` checks all that could go wrong and says the shapes of the outputs, how many
 * steps it takes and how much scratch memory; `run` computes. Constants may be read by both, other values by `run`
 * only. After `plan` every size is at most QFB_RUN_SIZE, so that sums and products of two sizes stay in int64. */
#ifndef QFB_NODE_H
#define QFB_NODE_H

#include "../qfb_run.h"
#include "names.h"

#define QFB_RUN_SIZE INT64_C(0x7fffffff)

typedef qfb_value_state value_t;

typedef struct {
    qfb_plan *plan;
    qfb_file *file;
    qfb_node node;
    uint32_t index;
} node_t;

typedef struct {
    const char *name;
    uint32_t version;
    qfb_code (*plan)(node_t *node);
    qfb_code (*run)(node_t *node);
} operator_t;

/* The tables of the operators, in the files of those names. Each ends with a name of NULL. */
extern const operator_t qfb_sum_operators[], qfb_grid_operators[], qfb_window_operators[], qfb_layout_operators[],
    qfb_selection_operators[], qfb_resize_operators[], qfb_real_operators[];

/* A failure at the node. */
qfb_code node_fail(node_t *node, qfb_code code, const char *rule, const char *what);
#define TRY(step) do { qfb_code code_ = (step); if (code_) return code_; } while (0)
#define UNSUPPORTED(what) node_fail(node, QFB_UNSUPPORTED, "", what)
#define INVALID(rule, what) node_fail(node, QFB_INVALID, rule, what)

/* ---- Operands, attributes ---- */

uint32_t node_tensor(const node_t *node, uint32_t input); /* its index; UINT32_MAX if the input is absent */
value_t *node_input(const node_t *node, uint32_t input);  /* NULL if absent */
value_t *node_output(const node_t *node, uint32_t output);
int node_is(const node_t *node, const char *rule);

/* Sizes of a window, of pads and the like: -2^31 < value < 2^31. */
qfb_code node_int(node_t *node, const char *name, int64_t *value);
qfb_code node_truth(node_t *node, const char *name, int64_t *value); /* 0 or 1 */
qfb_code node_ints(node_t *node, const char *name, qfb_list *list); /* of any value */
/* Which of some words a text attribute is; `count` if none. */
qfb_code node_word(node_t *node, const char *name, const char *const *words, int count, int *chosen);
qfb_code node_sizes(node_t *node, const char *name, uint32_t count, int64_t least, int64_t *values);
qfb_code node_axis(node_t *node, const char *name, uint32_t rank, uint32_t *axis); /* may count from the end */

/* An axis that may count from the end, as one from 0. */
qfb_code axis_from_start(node_t *node, int64_t axis, uint32_t rank, uint32_t *found);

/* A constant vector of integers, each between -2^63 and 2^63 - 1; at most QFB_RUN_RANK of them. */
qfb_code node_constants(node_t *node, uint32_t input, int64_t *values, uint32_t *count);

/* The integers of the input must be of at most `bits` bits, signed or not, and be there. */
qfb_code node_integers(node_t *node, uint32_t input, uint32_t bits);

/* Fails for a quantization that is more than scales and zero points that are integers, per tensor or per channel. */
qfb_code node_affine(node_t *node, const qfb_quantization *q);

/* The one zero point of an input or output (0 without quantization); fails if there are several, or blocks. */
qfb_code node_zero_point(node_t *node, uint32_t tensor, int64_t *zero_point);

/* The zero points of a weight, per tensor or along `axis`, to be read by slice. */
typedef struct {
    qfb_numbers numbers;
    int64_t zero; /* the first of them */
} zero_points_t;
qfb_code node_zero_points(node_t *node, uint32_t tensor, uint32_t axis, zero_points_t *points);
static inline int64_t zero_point_of(const zero_points_t *points, uint32_t slice)
{
    const qfb_numbers *numbers = &points->numbers;
    return numbers->count > 1 ? qfb_stored(numbers->array.data, numbers->dtype, slice) : points->zero;
}

/* The sums that are the only output are int32, and their zero points 0. */
qfb_code node_plain_sums(node_t *node);

/* An operator that moves integers from an input to an output: both of one type and one grid. */
qfb_code node_moves(node_t *node, uint32_t input, uint32_t output);

/* Limits of a quantized output: [quant_min, quant_max]; of another one: those of its type. */
qfb_code node_range(node_t *node, uint32_t output, int64_t *low, int64_t *high);

/* ---- Planning ---- */

/* The shape and type of an output: those that the file states, where it states them. */
qfb_code node_give(node_t *node, uint32_t output, uint32_t rank, const int64_t *shape, uint32_t dtype);
qfb_code node_give_like(node_t *node, uint32_t output, const value_t *like, uint32_t dtype);
/* Steps that the node takes: a product of up to four factors. */
qfb_code node_work(node_t *node, uint64_t a, uint64_t b, uint64_t c, uint64_t d);
/* Scratch memory that the node needs while it runs: count elements of that many bytes. */
qfb_code node_scratch(node_t *node, uint64_t count, uint64_t width);
void *scratch(const node_t *node);
/* a * b, or UINT64_MAX if that is too large. */
uint64_t times(uint64_t a, uint64_t b);

/* ---- Elements ---- */

static inline void put(value_t *value, uint64_t index, int64_t x)
{
    uint8_t *p = (uint8_t *)(uintptr_t)value->data + index * value->width;
    uint64_t bits = (uint64_t)x;
    switch (value->width) {
    case 8:
        p[7] = (uint8_t)(bits >> 56), p[6] = (uint8_t)(bits >> 48), p[5] = (uint8_t)(bits >> 40);
        p[4] = (uint8_t)(bits >> 32); /* fall through */
    case 4: p[3] = (uint8_t)(bits >> 24), p[2] = (uint8_t)(bits >> 16); /* fall through */
    case 2: p[1] = (uint8_t)(bits >> 8); /* fall through */
    default: p[0] = (uint8_t)bits;
    }
}

static inline int64_t get(const value_t *value, uint64_t index)
{
    const uint8_t *p = value->data + index * value->width;
    if (value->packed)
        return qfb_element(value, index);
    switch (value->dtype) {
    case QFB_INT8: case QFB_INT4: case QFB_INT2: return qfb_signed_(*p, 8);
    case QFB_INT16: return qfb_signed_(qfb_u16_(p), 16);
    case QFB_UINT16: return qfb_u16_(p);
    case QFB_INT32: return qfb_signed_(qfb_u32_(p), 32);
    case QFB_UINT32: case QFB_FLOAT32: return qfb_u32_(p);
    case QFB_INT64: case QFB_UINT64: return qfb_signed_(qfb_u64_(p), 64);
    default: return *p;
    }
}

static inline int64_t clamp(int64_t x, int64_t low, int64_t high) { return x < low ? low : x > high ? high : x; }

/* A sum as int32: QFB_OVERFLOW if it is none. */
qfb_code put_sum(node_t *node, value_t *value, uint64_t index, int64_t sum);

/* ---- Views: the elements of an array in the order of another shape ---- */

enum { QFB_VIEW_RANK = 2 * QFB_RUN_RANK };

typedef struct {
    uint32_t rank;
    int64_t shape[QFB_VIEW_RANK], step[QFB_VIEW_RANK], at[QFB_VIEW_RANK];
    int64_t place; /* of the present element */
} view_t;

void view_start(view_t *view, uint32_t rank, const int64_t *shape);     /* with steps of a contiguous array */
void view_broadcast(view_t *view, const value_t *to, const value_t *from); /* elements of `from` in the shape of `to` */
void view_next(view_t *view);

/* The shape of a and b broadcast together, into a. */
qfb_code node_broadcast(node_t *node, uint32_t *rank, int64_t *shape, const value_t *other);
/* Copy a view of x into an output. */
qfb_code copy_view(value_t *y, const value_t *x, view_t *view);

#endif

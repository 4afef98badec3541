/* Resize by nearest neighbour. Which element is nearest is defined in float32 (docs/spec/operators.md, "Resize"),
 * operation by operation. Sizes are up to 2^24 and scales between 2^-24 and 2^24, so that nothing gets too large. */
#include "float32.h"
#include "node.h"

enum { MOST_SIZE = 1 << 24 };

enum { ASYMMETRIC, HALF_PIXEL, PYTORCH_HALF_PIXEL, SYMMETRIC, ALIGN_CORNERS };
enum { ROUND_FLOOR, ROUND_CEIL, PREFER_FLOOR, PREFER_CEIL };

typedef struct {
    int64_t out[QFB_RUN_RANK];
    f32_t step[QFB_RUN_RANK];
    int place, rounding;
} resize_t;

static qfb_code choice(node_t *node, const char *name, const char *const *words, int count, int *chosen)
{
    TRY(node_word(node, name, words, count, chosen));
    return *chosen < count ? QFB_OK : UNSUPPORTED("a mode of Resize that is not computed with integers");
}

static qfb_code resize_modes(node_t *node, resize_t *r)
{
    static const char *const nearest[] = {"nearest"}, *const stretch[] = {"stretch"};
    static const char *const places[] = {"asymmetric", "half_pixel", "pytorch_half_pixel", "half_pixel_symmetric",
                                         "align_corners"};
    static const char *const roundings[] = {"floor", "ceil", "round_prefer_floor", "round_prefer_ceil"};
    int64_t truth;
    int only;
    TRY(node_truth(node, "antialias", &truth));
    TRY(node_truth(node, "exclude_outside", &truth));
    TRY(choice(node, "mode", nearest, 1, &only));
    TRY(choice(node, "keep_aspect_ratio_policy", stretch, 1, &only));
    TRY(choice(node, "coordinate_transformation_mode", places, 5, &r->place));
    return choice(node, "nearest_mode", roundings, 4, &r->rounding);
}

/* floor(size * scale), exact: for size up to 2^24 and scale from 2^-24 to 2^24. */
static int64_t floor_of_product(int64_t size, f32_t scale)
{
    int shift = 23 - ((int)(scale >> 23) - 127);
    int64_t product = size * (int64_t)((scale & 0x7fffff) | 0x800000);
    return shift < 0 ? product << -shift : product >> shift;
}

/* A scale: floor(size * scale) positions, 1 / scale apart. The product is rounded to the type of the scale. Of float64
 * only numbers are computed that float32 has, too: that product is exact, and the step rounds as that of float32. */
static qfb_code scaled(node_t *node, const value_t *scales, uint32_t place, int64_t size, int64_t *out, f32_t *step)
{
    int is_double = scales->dtype == QFB_FLOAT64, exponent;
    uint64_t bits = is_double ? qfb_u64_(scales->data + 8 * (size_t)place) : 0;
    f32_t scale = is_double ? f32_of_double(bits) : qfb_u32_(scales->data + 4 * (size_t)place);
    if (bits << 35)
        return UNSUPPORTED("a scale of float64 that is no float32 number: convert the source with --input-shape");
    exponent = (int)(scale >> 23) - 127;
    if (exponent < -24 || exponent > 24) /* negative ones, infinities and NaN are beyond, too */
        return UNSUPPORTED("a scale that is not between 2^-24 and 2^24");
    if (is_double && size > MOST_SIZE && scale != F32_ONE)
        return UNSUPPORTED("sizes of 0, or of more than 2^24");
    if (!is_double)
        *out = f32_floor(f32_product(f32_of_integer(size), scale));
    else
        *out = scale == F32_ONE ? size : floor_of_product(size, scale);
    *step = f32_quotient(F32_ONE, scale);
    return QFB_OK;
}

static qfb_code resized_axis(node_t *node, uint32_t axis, uint32_t place, resize_t *r)
{
    const value_t *scales = node_input(node, 2), *sizes = node_input(node, 3);
    int64_t size = node_input(node, 0)->shape[axis];
    if (sizes && sizes->count)
        r->out[axis] = qfb_element(sizes, place);
    else
        TRY(scaled(node, scales, place, size, &r->out[axis], &r->step[axis]));
    if (r->out[axis] == size)
        return QFB_OK;
    if (size < 1 || size > MOST_SIZE || r->out[axis] < 0 || r->out[axis] > MOST_SIZE)
        return UNSUPPORTED("sizes of 0, or of more than 2^24");
    if (sizes && sizes->count && r->out[axis])
        r->step[axis] = f32_quotient(f32_of_integer(size), f32_of_integer(r->out[axis]));
    if (r->place == ALIGN_CORNERS && r->out[axis] > 1 && size > 1)
        r->step[axis] = f32_quotient(f32_of_integer(size - 1), f32_of_integer(r->out[axis] - 1));
    if (r->place == ALIGN_CORNERS && size == 1)
        r->step[axis] = 0;
    return QFB_OK;
}

static int is_real(int dtype) { return dtype == QFB_FLOAT32 || dtype == QFB_FLOAT64; }

static qfb_code resize_read(node_t *node, resize_t *r)
{
    const value_t *x = node_input(node, 0), *scales = node_input(node, 2), *sizes = node_input(node, 3);
    const value_t *given = sizes && sizes->count ? sizes : scales;
    int used[QFB_RUN_RANK] = {0};
    uint32_t i, axis, count = x->rank;
    qfb_list axes;
    memset(r, 0, sizeof *r);
    TRY(resize_modes(node, r));
    TRY(node_ints(node, "axes", &axes));
    count = axes.count ? axes.count : x->rank;
    if (!given || given->in_arena || !given->data || given->rank != 1 || given->count != count ||
        count > QFB_RUN_RANK || !(given == sizes ? qfb_is_integer_type(given->dtype) : is_real(given->dtype)))
        return UNSUPPORTED("sizes or scales that are not constant (int64; float32, float64), or not one for each axis");
    memcpy(r->out, x->shape, sizeof r->out);
    for (i = 0; i < count; i++) {
        axis = i;
        if (axes.count)
            TRY(axis_from_start(node, qfb_integer(&axes, i), x->rank, &axis));
        if (used[axis])
            return INVALID("V43", "an axis is listed twice");
        used[axis] = 1;
        TRY(resized_axis(node, axis, i, r));
    }
    return QFB_OK;
}

static qfb_code resize_plan(node_t *node)
{
    uint64_t places = 0;
    uint32_t i;
    resize_t r;
    if (node->node.rule.size)
        return UNSUPPORTED("a rule with floats: convert the network with --integer-only");
    TRY(node_moves(node, 0, 0));
    TRY(resize_read(node, &r));
    TRY(node_give(node, 0, node_input(node, 0)->rank, r.out, node_input(node, 0)->dtype));
    for (i = 0; i < node_input(node, 0)->rank; i++)
        places += (uint64_t)r.out[i];
    TRY(node_scratch(node, places, 8));
    TRY(node_work(node, places, 64, 1, 1));
    return node_work(node, node_output(node, 0)->count, node_input(node, 0)->rank + 1, 1, 1);
}

/* How far half_pixel_symmetric moves positions, so that what is cut off is divided between both ends. */
static f32_t offset(const resize_t *r, uint32_t axis, int64_t size)
{
    f32_t used = f32_product(f32_of_integer(r->out[axis]), r->step[axis]);
    f32_t rest = f32_sum(F32_ONE, f32_quotient(used, f32_of_integer(size)) ^ F32_SIGN);
    return f32_product(f32_product(f32_of_integer(size), F32_HALF), rest);
}

/* Which element of the input a position of the output takes, along a dimension. */
static int64_t nearest(const resize_t *r, uint32_t axis, int64_t position, int64_t size)
{
    const f32_t minus_half = F32_HALF | F32_SIGN;
    f32_t place = f32_of_integer(position), rest;
    if (r->out[axis] == size)
        return position;
    if (r->out[axis] == 1 && (r->place == PYTORCH_HALF_PIXEL || r->place == ALIGN_CORNERS))
        place = 0;
    else if (r->place == HALF_PIXEL || r->place == PYTORCH_HALF_PIXEL)
        place = f32_sum(f32_product(f32_sum(place, F32_HALF), r->step[axis]), minus_half);
    else if (r->place == SYMMETRIC)
        place = f32_sum(f32_sum(offset(r, axis, size), f32_product(f32_sum(place, F32_HALF), r->step[axis])), minus_half);
    else
        place = f32_product(place, r->step[axis]);
    position = f32_floor(place);
    rest = f32_sum(place, f32_of_integer(-position)); /* exact, but where it is rounded to 1 */
    switch (r->rounding) {
    case ROUND_FLOOR: break;
    case ROUND_CEIL: position += rest > 0; break;
    case PREFER_FLOOR: position += rest > F32_HALF; break;
    default: position += rest >= F32_HALF;
    }
    return clamp(position, 0, size - 1);
}

static qfb_code resize_run(node_t *node)
{
    const value_t *x = node_input(node, 0);
    value_t *y = node_output(node, 0);
    int64_t *places = (int64_t *)scratch(node), *next = places, *first[QFB_RUN_RANK];
    view_t view, plain;
    uint64_t i;
    uint32_t k;
    int64_t at;
    resize_t r;
    TRY(resize_read(node, &r));
    view_start(&plain, x->rank, x->shape);
    for (k = 0; k < x->rank; k++)
        for (first[k] = next, at = 0; at < r.out[k]; at++)
            *next++ = nearest(&r, k, at, x->shape[k]) * plain.step[k];
    view_start(&view, y->rank, y->shape);
    for (i = 0; i < y->count; i++, view_next(&view)) {
        for (at = 0, k = 0; k < y->rank; k++)
            at += first[k][view.at[k]];
        put(y, i, get(x, (uint64_t)at));
    }
    return QFB_OK;
}

const operator_t qfb_resize_operators[] = {{"Resize", 19, resize_plan, resize_run}, {NULL, 0, NULL, NULL}};

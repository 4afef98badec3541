/* Other shapes for the same elements: Identity, Reshape, Flatten, Squeeze, Unsqueeze, Transpose, Expand, Tile,
 * DepthToSpace, SpaceToDepth; and Relu and Clip, which clamp them. */
#include "node.h"

/* ---- The same order ---- */

static qfb_code give_same(node_t *node, uint32_t rank, const int64_t *shape)
{
    const value_t *x = node_input(node, 0);
    TRY(node_give(node, 0, rank, shape, x->dtype));
    if (node_output(node, 0)->count != x->count)
        return INVALID("V43", "the numbers of elements of input and output differ");
    return node_work(node, x->count, 1, 1, 1);
}

static qfb_code copy_run(node_t *node)
{
    value_t *y = node_output(node, 0);
    uint64_t i;
    for (i = 0; i < y->count; i++)
        put(y, i, qfb_element(node_input(node, 0), i));
    return QFB_OK;
}

static qfb_code identity_plan(node_t *node)
{
    TRY(node_moves(node, 0, 0));
    return give_same(node, node_input(node, 0)->rank, node_input(node, 0)->shape);
}

static qfb_code reshape_plan(node_t *node)
{
    const value_t *x = node_input(node, 0);
    int64_t shape[QFB_RUN_RANK], all_known;
    uint64_t others = 1;
    uint32_t rank, i, open = QFB_RUN_RANK;
    TRY(node_moves(node, 0, 0));
    TRY(node_constants(node, 1, shape, &rank));
    TRY(node_truth(node, "allowzero", &all_known));
    for (i = 0; i < rank; i++) {
        if (shape[i] == 0 && !all_known) {
            if (i >= x->rank)
                return INVALID("V43", "the shape copies a dimension that the input does not have");
            shape[i] = x->shape[i];
        }
        if (shape[i] == -1 && open == QFB_RUN_RANK)
            open = i;
        else
            others = times(others, shape[i] < 0 ? UINT64_MAX : (uint64_t)shape[i]);
    }
    if (open < QFB_RUN_RANK && (!others || x->count % others))
        return INVALID("V43", "the elements do not fit that shape");
    if (open < QFB_RUN_RANK)
        shape[open] = (int64_t)(x->count / others);
    return give_same(node, rank, shape);
}

static qfb_code flatten_plan(node_t *node)
{
    const value_t *x = node_input(node, 0);
    int64_t axis, shape[2];
    uint64_t rows = 1, columns = 1;
    uint32_t cut, i;
    TRY(node_moves(node, 0, 0));
    TRY(node_int(node, "axis", &axis));
    cut = x->rank;
    if (axis != (int64_t)x->rank)
        TRY(axis_from_start(node, axis, x->rank, &cut));
    for (i = 0; i < x->rank; i++)
        if (i < cut)
            rows = times(rows, (uint64_t)x->shape[i]);
        else
            columns = times(columns, (uint64_t)x->shape[i]);
    shape[0] = rows > QFB_RUN_SIZE ? -1 : (int64_t)rows, shape[1] = columns > QFB_RUN_SIZE ? -1 : (int64_t)columns;
    return give_same(node, 2, shape);
}

/* The axes of a constant input, marked. */
static qfb_code marked_axes(node_t *node, uint32_t input, uint32_t rank, int *marked)
{
    int64_t axes[QFB_RUN_RANK];
    uint32_t count, i, axis;
    memset(marked, 0, QFB_RUN_RANK * sizeof *marked);
    TRY(node_constants(node, input, axes, &count));
    for (i = 0; i < count; i++) {
        TRY(axis_from_start(node, axes[i], rank, &axis));
        if (marked[axis])
            return INVALID("V43", "an axis is listed twice");
        marked[axis] = 1;
    }
    return QFB_OK;
}

static qfb_code squeeze_plan(node_t *node)
{
    const value_t *x = node_input(node, 0);
    int64_t shape[QFB_RUN_RANK];
    int gone[QFB_RUN_RANK];
    uint32_t rank = 0, i;
    TRY(node_moves(node, 0, 0));
    if (node_input(node, 1))
        TRY(marked_axes(node, 1, x->rank, gone));
    for (i = 0; i < x->rank; i++) {
        if (node_input(node, 1) && gone[i] && x->shape[i] != 1)
            return INVALID("V43", "a dimension that is not of size 1 cannot be squeezed");
        if (node_input(node, 1) ? !gone[i] : x->shape[i] != 1)
            shape[rank++] = x->shape[i];
    }
    return give_same(node, rank, shape);
}

static qfb_code unsqueeze_plan(node_t *node)
{
    const value_t *x = node_input(node, 0), *axes = node_input(node, 1);
    int64_t shape[QFB_RUN_RANK];
    int added[QFB_RUN_RANK];
    uint32_t rank, i, from = 0;
    TRY(node_moves(node, 0, 0));
    if (!axes || axes->count > QFB_RUN_RANK || axes->count + x->rank > QFB_RUN_RANK)
        return UNSUPPORTED("no axes, or more than 8 dimensions");
    rank = x->rank + (uint32_t)axes->count;
    TRY(marked_axes(node, 1, rank, added));
    for (i = 0; i < rank; i++)
        shape[i] = added[i] ? 1 : x->shape[from++];
    return give_same(node, rank, shape);
}

/* ---- Another order: views ---- */

/* The view of the input that is the output; its shape is that of the view where dimensions are not joined. */
static qfb_code transpose_view(node_t *node, view_t *view, int64_t *shape)
{
    const value_t *x = node_input(node, 0);
    int64_t order[QFB_RUN_RANK];
    int used[QFB_RUN_RANK] = {0};
    uint32_t i;
    view_t plain;
    TRY(node_sizes(node, "perm", x->rank, 0, order));
    view_start(&plain, x->rank, x->shape);
    view_start(view, x->rank, x->shape);
    for (i = 0; i < x->rank; i++) {
        if (order[i] >= (int64_t)x->rank || used[order[i]])
            return INVALID("V43", "perm is not a permutation of the dimensions");
        used[order[i]] = 1;
        view->shape[i] = shape[i] = x->shape[order[i]], view->step[i] = plain.step[order[i]];
    }
    return QFB_OK;
}

static qfb_code transpose_plan(node_t *node)
{
    int64_t shape[QFB_RUN_RANK];
    view_t view;
    TRY(node_moves(node, 0, 0));
    TRY(transpose_view(node, &view, shape));
    return give_same(node, view.rank, shape);
}

static qfb_code transpose_run(node_t *node)
{
    int64_t shape[QFB_RUN_RANK];
    view_t view;
    TRY(transpose_view(node, &view, shape));
    return copy_view(node_output(node, 0), node_input(node, 0), &view);
}

static qfb_code expand_plan(node_t *node)
{
    value_t wanted;
    int64_t shape[QFB_RUN_RANK];
    uint32_t rank = 0, i;
    TRY(node_moves(node, 0, 0));
    memset(&wanted, 0, sizeof wanted);
    TRY(node_constants(node, 1, wanted.shape, &wanted.rank));
    for (i = 0; i < wanted.rank; i++)
        if (wanted.shape[i] < 0)
            return INVALID("V43", "a size is negative");
    TRY(node_broadcast(node, &rank, shape, node_input(node, 0)));
    TRY(node_broadcast(node, &rank, shape, &wanted));
    TRY(node_give(node, 0, rank, shape, node_input(node, 0)->dtype));
    return node_work(node, node_output(node, 0)->count, 1, 1, 1);
}

static qfb_code expand_run(node_t *node)
{
    view_t view;
    view_broadcast(&view, node_output(node, 0), node_input(node, 0));
    return copy_view(node_output(node, 0), node_input(node, 0), &view);
}

static qfb_code tile_plan(node_t *node)
{
    const value_t *x = node_input(node, 0);
    int64_t repeats[QFB_RUN_RANK], shape[QFB_RUN_RANK];
    uint32_t count, i;
    TRY(node_moves(node, 0, 0));
    TRY(node_constants(node, 1, repeats, &count));
    if (count != x->rank)
        return INVALID("V43", "there is not one repeat count for each dimension");
    for (i = 0; i < count; i++) {
        uint64_t size = times((uint64_t)x->shape[i], repeats[i] < 0 ? UINT64_MAX : (uint64_t)repeats[i]);
        shape[i] = size > QFB_RUN_SIZE ? -1 : (int64_t)size;
    }
    TRY(node_give(node, 0, x->rank, shape, x->dtype));
    return node_work(node, node_output(node, 0)->count, 1, 1, 1);
}

static qfb_code tile_run(node_t *node)
{
    const value_t *x = node_input(node, 0), *y = node_output(node, 0);
    view_t view, plain;
    uint32_t i;
    view_start(&plain, x->rank, x->shape);
    memset(&view, 0, sizeof view);
    view.rank = 2 * x->rank;
    for (i = 0; i < x->rank; i++) {
        view.shape[2 * i] = y->shape[i] / x->shape[i], view.step[2 * i] = 0;
        view.shape[2 * i + 1] = x->shape[i], view.step[2 * i + 1] = plain.step[i];
    }
    return copy_view(node_output(node, 0), x, &view);
}

/* DepthToSpace and SpaceToDepth: six dimensions of the input in another order. */
static qfb_code blocks_view(node_t *node, view_t *view, int64_t *shape)
{
    static const int orders[3][6] = {{0, 3, 4, 1, 5, 2}, {0, 1, 4, 2, 5, 3}, {0, 3, 5, 1, 2, 4}};
    static const char *const modes[] = {"DCR", "CRD"};
    const value_t *x = node_input(node, 0);
    int64_t b, parts[6];
    view_t plain;
    int to_depth = qfb_equals(node->node.operator_name, "SpaceToDepth"), kind = 2, i;
    TRY(node_int(node, "blocksize", &b));
    if (x->rank != 4 || b < 1 || b > 0x7fff)
        return UNSUPPORTED("a block size, or an input that is not [N, C, H, W]");
    if (!to_depth)
        TRY(node_word(node, "mode", modes, 2, &kind));
    if (!to_depth && kind == 2)
        return INVALID("V42", "an unknown mode");
    if (to_depth ? x->shape[2] % b || x->shape[3] % b : x->shape[1] % (b * b))
        return INVALID("V43", "the input is not divisible into blocks of that size");
    parts[0] = x->shape[0];
    if (to_depth) {
        parts[1] = x->shape[1], parts[2] = x->shape[2] / b, parts[3] = b, parts[4] = x->shape[3] / b, parts[5] = b;
        shape[1] = x->shape[1] * b * b, shape[2] = parts[2], shape[3] = parts[4];
    } else {
        parts[1] = kind ? x->shape[1] / (b * b) : b, parts[2] = b, parts[3] = kind ? b : x->shape[1] / (b * b);
        parts[4] = x->shape[2], parts[5] = x->shape[3];
        shape[1] = x->shape[1] / (b * b), shape[2] = x->shape[2] * b, shape[3] = x->shape[3] * b;
    }
    shape[0] = x->shape[0];
    view_start(&plain, 6, parts);
    *view = plain;
    for (i = 0; i < 6; i++)
        view->shape[i] = parts[orders[kind][i]], view->step[i] = plain.step[orders[kind][i]];
    return QFB_OK;
}

static qfb_code blocks_plan(node_t *node)
{
    int64_t shape[4];
    view_t view;
    TRY(node_moves(node, 0, 0));
    TRY(blocks_view(node, &view, shape));
    return give_same(node, 4, shape);
}

static qfb_code blocks_run(node_t *node)
{
    int64_t shape[4];
    view_t view;
    TRY(blocks_view(node, &view, shape));
    return copy_view(node_output(node, 0), node_input(node, 0), &view);
}

/* ---- Clamps ---- */

/* The bounds that Relu and Clip bring, joined with the range of a quantized output. */
static qfb_code bounds(node_t *node, int64_t *low, int64_t *high)
{
    int64_t zero;
    uint32_t i;
    TRY(node_range(node, 0, low, high));
    if (qfb_equals(node->node.operator_name, "Relu")) {
        TRY(node_zero_point(node, (uint32_t)qfb_integer(&node->node.outputs, 0), &zero));
        *low = zero > *low ? zero : *low;
        return QFB_OK;
    }
    for (i = 1; i < 3; i++) {
        const value_t *bound = node_input(node, i);
        qfb_tensor tensor;
        int64_t value;
        if (!bound)
            continue;
        TRY(qfb_get_tensor(node->file, node_tensor(node, 0), &tensor));
        if (tensor.is_quantized || bound->in_arena || !bound->data || bound->count != 1 ||
            bound->dtype != node_input(node, 0)->dtype)
            return UNSUPPORTED("bounds that are real numbers, or not constant: convert with --integer-only");
        value = qfb_element(bound, 0);
        *low = i == 1 && value > *low ? value : *low;
        *high = i == 2 && value < *high ? value : *high;
    }
    return QFB_OK;
}

static qfb_code clamp_plan(node_t *node)
{
    int64_t low, high;
    TRY(node_moves(node, 0, 0));
    if (node_input(node, 0)->dtype == QFB_UINT64 || node_input(node, 0)->dtype == QFB_BOOL)
        return UNSUPPORTED("bounds of type uint64 or bool");
    TRY(bounds(node, &low, &high));
    return identity_plan(node);
}

static qfb_code clamp_run(node_t *node)
{
    value_t *y = node_output(node, 0);
    int64_t low, high, x;
    uint64_t i;
    TRY(bounds(node, &low, &high));
    for (i = 0; i < y->count; i++) {
        x = qfb_element(node_input(node, 0), i);
        x = x < low ? low : x;
        put(y, i, x > high ? high : x); /* the upper bound decides where they cross */
    }
    return QFB_OK;
}

const operator_t qfb_layout_operators[] = {
    {"Identity", 23, identity_plan, copy_run},      {"Reshape", 23, reshape_plan, copy_run},
    {"Flatten", 23, flatten_plan, copy_run},        {"Squeeze", 23, squeeze_plan, copy_run},
    {"Unsqueeze", 23, unsqueeze_plan, copy_run},    {"Transpose", 23, transpose_plan, transpose_run},
    {"Expand", 13, expand_plan, expand_run},        {"Tile", 13, tile_plan, tile_run},
    {"DepthToSpace", 13, blocks_plan, blocks_run},  {"SpaceToDepth", 13, blocks_plan, blocks_run},
    {"Relu", 14, clamp_plan, clamp_run},            {"Clip", 13, clamp_plan, clamp_run},
    {NULL, 0, NULL, NULL}};

/* qfb_dump: prints everything that a .qfb file says, as JSON; arrays are told by the digest that was checked. Doubles
 * are hexadecimal bits, so that nothing is rounded.
 *
 *     qfb_dump MODEL.qfb...        a line for each file; exit status: 0 printed, 2 trouble */
#if defined(__unix__) || defined(__APPLE__)
#define _XOPEN_SOURCE 700
#define QFB_POSIX
#endif
#include "opening.h"

static const char *comma = ""; /* before the next element, or key */

static void open_(const char *bracket) { printf("%s%s", comma, bracket), comma = ""; }
static void close_(const char *bracket) { printf("%s", bracket), comma = ","; }

static void string(qfb_string s)
{
    uint32_t i;
    open_("\"");
    for (i = 0; i < s.size; i++) {
        int c = control(s, &i);
        if (c >= 0 || s.text[i] == '"' || s.text[i] == '\\')
            printf("\\u%04x", (unsigned)(c >= 0 ? c : s.text[i]));
        else
            putchar(s.text[i]);
    }
    close_("\"");
}

static void key(const char *name) { printf("%s\"%s\":", comma, name), comma = ""; }
static void integer(int64_t value) { printf("%s%" PRId64, comma, value), comma = ","; }
static void bits(uint64_t value) { printf("%s\"%016" PRIx64 "\"", comma, value), comma = ","; }
static void text(const char *name, qfb_string value) { key(name), string(value); }
static void number(const char *name, int64_t value) { key(name), integer(value); }

static void dtype(const char *name, qfb_dtype value)
{
    key(name), printf("\"%s\"", qfb_dtype_of(value)->name), comma = ",";
}

enum { INTEGERS, DOUBLES, TEXTS };

static void elements(qfb_list list, int kind)
{
    uint32_t i;
    open_("[");
    for (i = 0; i < list.count; i++)
        if (kind == INTEGERS)
            integer(qfb_integer(&list, i));
        else if (kind == DOUBLES)
            bits(qfb_bits(&list, i));
        else
            string(qfb_text(&list, i));
    close_("]");
}

static void list(const char *name, qfb_list value, int kind) { key(name), elements(value, kind); }

static void level(qfb_file *file, const qfb_quantization *q);

static void numbers(qfb_file *file, const char *name, const qfb_numbers *n)
{
    qfb_quantization second;
    uint64_t i;
    if (!n->dtype)
        return;
    key(name), open_("{"), dtype("dtype", n->dtype), list("shape", n->shape, INTEGERS), key("values"), open_("[");
    for (i = 0; i < n->count; i++)
        if (qfb_is_integer_type(n->dtype))
            integer(qfb_stored(n->array.data, n->dtype, i));
        else
            bits(qfb_float_bits(n->array.data, n->dtype, i));
    close_("]");
    if (n->array.buffer != QFB_INLINE)
        number("buffer", n->array.buffer);
    if (n->second_level)
        qfb_second_level(file, n, &second), key("quantization"), open_("{"), level(file, &second), close_("}");
    close_("}");
}

static void level(qfb_file *file, const qfb_quantization *q)
{
    list("block", q->block, INTEGERS), numbers(file, "scale", &q->scale), numbers(file, "zero_point", &q->zero_point);
    numbers(file, "offset", &q->offset), numbers(file, "table", &q->table);
    numbers(file, "group_index", &q->group_index);
}

static void quantization(qfb_file *file, const qfb_quantization *q)
{
    open_("{"), level(file, q);
    number("quant_min", q->quant_min), number("quant_max", q->quant_max);
    text("scale_name", q->scale_name), text("zero_point_name", q->zero_point_name);
    if (q->observed_minimum.present) {
        text("observer", q->observer), text("qscheme", q->qscheme);
        list("minimum", q->observed_minimum, DOUBLES), list("maximum", q->observed_maximum, DOUBLES);
        if (q->has_observed_range)
            number("observed_min", q->observed_quant_min), number("observed_max", q->observed_quant_max);
    }
    close_("}");
}

static void tensor(qfb_file *file, uint32_t index)
{
    qfb_tensor t;
    if (qfb_get_tensor(file, index, &t))
        return;
    open_("{");
    text("name", t.name), dtype("dtype", t.dtype);
    if (t.shape.present)
        list("shape", t.shape, INTEGERS);
    list("dims", t.dims, TEXTS), list("aliases", t.aliases, TEXTS);
    if (t.is_constant)
        number("buffer", t.array.buffer);
    if (t.is_quantized)
        key("quantization"), quantization(file, &t.quantization);
    close_("}");
}

static void attribute(const qfb_file *file, const qfb_node *node, uint32_t index)
{
    qfb_attribute a;
    qfb_get_attribute(file, node, index, &a);
    open_("["), string(a.name), integer(a.type);
    switch (a.type) {
    case QFB_INT: integer(a.integer); break;
    case QFB_FLOAT: bits(a.float_bits); break;
    case QFB_STRING: string(a.string); break;
    case QFB_INTS: elements(a.list, INTEGERS); break;
    case QFB_FLOATS: elements(a.list, DOUBLES); break;
    case QFB_STRINGS: elements(a.list, TEXTS); break;
    }
    close_("]");
}

static void node(qfb_file *file, uint32_t index)
{
    qfb_node n;
    uint32_t i;
    if (qfb_get_node(file, index, &n))
        return;
    open_("{");
    text("operator", n.operator_name), number("version", n.version), text("rule", n.rule);
    text("name", n.name), text("scope", n.scope), text("source_operator", n.source_operator);
    list("inputs", n.inputs, INTEGERS), list("outputs", n.outputs, INTEGERS);
    key("attributes"), open_("[");
    for (i = 0; i < n.attribute_count; i++)
        attribute(file, &n, i);
    close_("]"), close_("}");
}

static void pairs(const char *name, const qfb_file *file, uint32_t count,
                  void (*get)(const qfb_file *, uint32_t, qfb_string *, qfb_string *))
{
    uint32_t i;
    key(name), open_("[");
    for (i = 0; i < count; i++) {
        qfb_string k, v;
        get(file, i, &k, &v);
        open_("["), string(k), string(v), close_("]");
    }
    close_("]");
}

static void buffers(qfb_file *file)
{
    uint32_t i, k;
    key("buffers"), open_("[");
    for (i = 0; i < qfb_buffer_count(file); i++) {
        qfb_array array;
        if (qfb_get_buffer(file, i, &array))
            return;
        open_("["), integer((int64_t)qfb_offset(file, i)), integer((int64_t)array.size), open_("\"");
        for (k = 0; k < 32; k++)
            printf("%02x", qfb_digest(file, i)[k]);
        close_("\""), close_("]");
    }
    close_("]");
}

static void vectors(qfb_file *file)
{
    uint32_t v, i, ends[2];
    qfb_list digests;
    int end;
    ends[0] = qfb_inputs(file).count, ends[1] = qfb_outputs(file).count;
    key("vectors"), open_("[");
    for (v = 0; v < qfb_vector_count(file); v++) {
        open_("["), string(qfb_vector_name(file, v));
        for (end = 0; end < 2; end++)
            for (i = 0; i < ends[end]; i++) {
                qfb_value value;
                if (qfb_get_value(file, v, end, i, &value))
                    return;
                open_("["), elements(value.shape, INTEGERS), integer(value.array.buffer), close_("]");
            }
        open_("\"");
        for (i = 0, digests = qfb_vector_digests(file, v); i < digests.count; i++)
            printf("%02x", digests.bytes[digests.at + i]);
        close_("\"");
        close_("]");
    }
    close_("]");
}

static void dump(qfb_file *file)
{
    uint32_t i;
    open_("{");
    number("minor_version", qfb_minor_version(file)), text("producer", qfb_producer(file));
    text("engine", qfb_engine(file)), text("graph", qfb_graph_name(file));
    pairs("source", file, qfb_source_count(file), qfb_get_source);
    pairs("metadata", file, qfb_metadata_count(file), qfb_get_metadata);
    buffers(file);
    list("inputs", qfb_inputs(file), INTEGERS), list("outputs", qfb_outputs(file), INTEGERS);
    key("tensors"), open_("[");
    for (i = 0; i < qfb_tensor_count(file); i++)
        tensor(file, i);
    close_("]");
    key("nodes"), open_("[");
    for (i = 0; i < qfb_node_count(file); i++)
        node(file, i);
    close_("]");
    vectors(file);
    close_("}");
    putchar('\n');
}

static int dump_file(const char *path)
{
    opened_t opened;
    qfb_code failed;
    comma = "";
    if (!open_file(&opened, path)) {
        fprintf(stderr, "%s: cannot be read, is empty, or is not a regular file\n", path);
        return 2;
    }
    failed = opened.file.error.code;
    if (failed)
        print_failure(path, &opened.file);
    else
        dump(&opened.file);
    close_file(&opened);
    return failed ? 2 : 0;
}

int main(int count, char **arguments)
{
    int i, worst = count < 2 ? 2 : 0;
    if (count < 2)
        fputs("usage: qfb_dump MODEL.qfb...\n", stderr);
    for (i = 1; i < count; i++)
        worst |= dump_file(arguments[i]);
    return fflush(stdout) || ferror(stdout) ? 2 : worst;
}

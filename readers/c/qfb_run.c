/* qfb_run: runs an integer-only .qfb file.
 *
 *     qfb_run MODEL.qfb INPUT.bin... [--raw] [--shape NAME=1,3,224,224] [--work STEPS] [--memory BYTES]
 *     qfb_run --vectors MODEL.qfb...
 *     qfb_run --list MODEL.qfb [--shape NAME=...]
 *
 * INPUT.bin holds the integers of an input of the graph, as qfb_run.h describes them; there is one file for each. The
 * elements of the outputs are printed one a line, or written as bytes (--raw). --vectors runs the test vectors that are
 * in files and tells how many integers are equal. Exit status: 0 done, or all equal; 1 some differ; 2 trouble. */
#if defined(__unix__) || defined(__APPLE__)
#define _XOPEN_SOURCE 700
#define QFB_POSIX
#endif
#include "opening.h"
#include "qfb_run.h"
#include <errno.h>
#include <stdlib.h>

enum { MOST_INPUTS = 64, TROUBLE = 2 };

typedef struct {
    const char *path;
    opened_t opened;
    qfb_file *file; /* in `opened` */
    qfb_plan plan;
    void *memory, *arena;
    const void *inputs[MOST_INPUTS];
    void *owned[MOST_INPUTS]; /* what the inputs are in */
    int64_t sizes[MOST_INPUTS][QFB_RUN_RANK];
    const int64_t *shapes[MOST_INPUTS];
} job_t;

static uint64_t most_work, most_memory = UINT64_C(1) << 33;

static int trouble(const char *path, const char *what)
{
    fflush(stdout);
    fprintf(stderr, "%s: %s\n", path, what);
    return TROUBLE;
}

static int failed(job_t *job)
{
    fflush(stdout);
    print_failure(job->path, job->file);
    return TROUBLE;
}

/* ---- Files ---- */

static int open_model(job_t *job, const char *path)
{
    memset(job, 0, sizeof *job);
    job->path = path, errno = 0;
    if (!open_file(&job->opened, path))
        return trouble(path, errno ? strerror(errno) : "is empty or not a regular file");
    job->file = &job->opened.file;
    if (job->file->error.code)
        return failed(job);
    if (qfb_inputs(job->file).count > MOST_INPUTS)
        return trouble(path, "has more than 64 inputs");
    return 0;
}

/* ---- Runs ---- */

static int make_plan(job_t *job)
{
    size_t size = qfb_plan_size(job->file);
    free(job->memory);
    if (!(job->memory = malloc(size ? size : 1)))
        return trouble(job->path, "there is not enough memory");
    return qfb_plan_make(&job->plan, job->file, job->memory, size, job->shapes, most_work) ? failed(job) : 0;
}

static int run(job_t *job)
{
    uint64_t size = job->plan.arena_size;
    free(job->arena);
    job->arena = NULL;
    if (size > most_memory || size > SIZE_MAX || !(job->arena = malloc(size ? (size_t)size : 1)))
        return trouble(job->path, "needs more memory than is available or allowed (--memory)");
    return qfb_plan_run(&job->plan, job->arena, size, job->inputs) ? failed(job) : 0;
}

static int read_inputs(job_t *job, char **paths, uint32_t count)
{
    const qfb_value_state *input;
    uint64_t size;
    uint32_t i;
    if (count != qfb_inputs(job->file).count)
        return trouble(job->path, "takes a different number of inputs");
    for (i = 0; i < count; i++) {
        if (qfb_plan_input(&job->plan, i, &input))
            return failed(job);
        errno = 0;
        if (!(job->inputs[i] = job->owned[i] = contents(paths[i], &size)))
            return trouble(paths[i], errno ? strerror(errno) : "is not a readable regular file");
        if (size != input->size)
            return trouble(paths[i], "does not have the size of the input (see --list; set sizes with --shape)");
    }
    return 0;
}

static int write_outputs(job_t *job, int raw)
{
    const qfb_value_state *output;
    uint32_t i;
    uint64_t k;
    for (i = 0; i < qfb_outputs(job->file).count; i++) {
        if (qfb_plan_output(&job->plan, i, &output))
            return failed(job);
        for (k = 0; k < output->count; k++) {
            int64_t x = qfb_element(output, k);
            uint32_t b, bits = (uint32_t)x;
            uint8_t bytes[8];
            float real;
            memcpy(&real, &bits, sizeof real);
            for (b = 0; b < 8; b++)
                bytes[b] = (uint8_t)((uint64_t)x >> (8 * b));
            if (raw)
                fwrite(bytes, 1, output->width, stdout);
            else if (output->dtype == QFB_FLOAT32)
                printf("%.9g\n", (double)real);
            else
                printf("%" PRId64 "\n", x);
        }
    }
    return 0;
}

static void print_value(const job_t *job, const char *what, uint32_t index, const qfb_value_state *value)
{
    qfb_file file = *job->file;
    qfb_tensor tensor;
    uint32_t i;
    if (qfb_get_tensor(&file, index, &tensor))
        return;
    printf("%s ", what);
    print_name(stdout, tensor.name);
    printf(" %s [", qfb_dtype_of(tensor.dtype)->name);
    for (i = 0; i < value->rank; i++)
        printf("%s%" PRId64, i ? "," : "", value->shape[i]);
    printf("]");
    if (tensor.is_quantized && !tensor.quantization.block.count && !tensor.quantization.scale.second_level &&
        qfb_is_integer_type(tensor.quantization.zero_point.dtype))
        printf(" scale %.17g zero point %" PRId64 " range %" PRId64 "..%" PRId64,
               qfb_scale(&tensor.quantization, 0), qfb_zero_point(&tensor.quantization, 0),
               tensor.quantization.quant_min, tensor.quantization.quant_max);
    printf(" %" PRIu64 " bytes\n", value->size);
}

static int list(job_t *job)
{
    qfb_list inputs = qfb_inputs(job->file), outputs = qfb_outputs(job->file);
    const qfb_value_state *value;
    uint32_t i;
    for (i = 0; i < inputs.count && !qfb_plan_input(&job->plan, i, &value); i++)
        print_value(job, "input", (uint32_t)qfb_integer(&inputs, i), value);
    for (i = 0; i < outputs.count && !qfb_plan_output(&job->plan, i, &value); i++)
        print_value(job, "output", (uint32_t)qfb_integer(&outputs, i), value);
    printf("nodes %" PRIu32 "\nvectors %" PRIu32 "\narena %" PRIu64 " bytes\nwork %" PRIu64 " steps\n",
           qfb_node_count(job->file), qfb_vector_count(job->file), job->plan.arena_size, job->plan.work);
    return 0;
}

/* ---- Test vectors ---- */

/* A value of a vector as the interpreter has values. */
static int vector_value(job_t *job, uint32_t vector, int is_output, uint32_t index, qfb_value_state *state)
{
    qfb_list ends = is_output ? qfb_outputs(job->file) : qfb_inputs(job->file);
    const qfb_dtype_info *info;
    qfb_tensor tensor;
    qfb_value value;
    uint32_t i;
    if (qfb_get_value(job->file, vector, is_output, index, &value) ||
        qfb_get_tensor(job->file, (uint32_t)qfb_integer(&ends, index), &tensor))
        return failed(job);
    if (value.shape.count > QFB_RUN_RANK || !(qfb_is_integer_type(tensor.dtype) || tensor.dtype == QFB_BOOL ||
                                              (is_output && tensor.dtype == QFB_FLOAT32)))
        return trouble(job->path, "a test vector has real numbers, or more than 8 dimensions");
    memset(state, 0, sizeof *state);
    info = qfb_dtype_of(tensor.dtype);
    state->dtype = (uint8_t)tensor.dtype, state->data = value.array.data, state->rank = value.shape.count;
    state->width = info->bits < 8 ? 1 : (uint8_t)(info->bits / 8), state->packed = info->bits < 8 ? info->bits : 0;
    state->count = info->bits < 8 ? 1 : value.array.size / state->width;
    for (i = 0; i < value.shape.count; i++) {
        state->shape[i] = qfb_integer(&value.shape, i);
        state->count = info->bits < 8 ? state->count * (uint64_t)state->shape[i] : state->count;
    }
    return 0;
}

/* The inputs of a vector: as they lie in the file, but unpacked. */
static int vector_inputs(job_t *job, uint32_t vector)
{
    qfb_value_state state;
    uint8_t *bytes;
    uint32_t i;
    uint64_t k;
    for (i = 0; i < qfb_inputs(job->file).count; i++) {
        if (vector_value(job, vector, 0, i, &state))
            return TROUBLE;
        memcpy(job->sizes[i], state.shape, sizeof state.shape);
        job->shapes[i] = job->sizes[i], job->inputs[i] = state.data;
        free(job->owned[i]);
        job->owned[i] = NULL;
        if (!state.packed)
            continue;
        if (state.count >= SIZE_MAX || !(bytes = (uint8_t *)malloc((size_t)state.count + 1)))
            return trouble(job->path, "there is not enough memory");
        for (k = 0; k < state.count; k++)
            bytes[k] = (uint8_t)qfb_element(&state, k);
        job->inputs[i] = job->owned[i] = bytes;
    }
    return 0;
}

/* Whether elements are equal; one NaN is as good as another. */
static int is_same(uint32_t dtype, int64_t a, int64_t b)
{
    const int64_t magnitude = 0x7fffffff, infinite = 0x7f800000;
    return a == b || (dtype == QFB_FLOAT32 && (a & magnitude) > infinite && (b & magnitude) > infinite);
}

static int compare_outputs(job_t *job, uint32_t vector, uint64_t *equal, uint64_t *total)
{
    const qfb_value_state *output;
    qfb_value_state wanted;
    uint32_t i;
    uint64_t k;
    for (i = 0; i < qfb_outputs(job->file).count; i++) {
        if (vector_value(job, vector, 1, i, &wanted))
            return TROUBLE;
        if (qfb_plan_output(&job->plan, i, &output))
            return failed(job);
        *total += wanted.count;
        if (output->rank != wanted.rank || memcmp(output->shape, wanted.shape, wanted.rank * sizeof *wanted.shape)) {
            *total += !wanted.count; /* another shape: none is equal, and at least one differs */
            continue;
        }
        for (k = 0; k < wanted.count; k++)
            *equal += (uint64_t)is_same(wanted.dtype, qfb_element(output, k), qfb_element(&wanted, k));
    }
    return 0;
}

/* The digests that a vector states, and the first node that computes something else. */
typedef struct {
    const job_t *job;
    qfb_list digests;
    uint32_t vector, next;
    int differs;
} watch_t;

static void compare_digests(void *self, uint32_t index)
{
    watch_t *watch = (watch_t *)self;
    qfb_file file = *watch->job->file;
    qfb_node node;
    uint32_t i;
    if (watch->differs || qfb_get_node(&file, index, &node))
        return;
    for (i = 0; i < node.outputs.count && watch->next + 16 <= watch->digests.count; i++) {
        uint32_t output = (uint32_t)qfb_integer(&node.outputs, i);
        const qfb_value_state *value = qfb_plan_value(&watch->job->plan, output);
        if (value->dtype != QFB_BOOL && !qfb_is_integer_type(value->dtype))
            continue;
        if (!watch->differs && !qfb_has_digest(value, watch->digests.bytes + watch->digests.at + watch->next)) {
            watch->differs = 1;
            printf("%s: test vector %" PRIu32 ": the first node that differs is %" PRIu32 ", ", watch->job->path,
                   watch->vector, index);
            print_value(watch->job, "output", output, value);
        }
        watch->next += 16;
    }
}

static int replay(job_t *job)
{
    uint64_t equal = 0, total = 0;
    int differs = 0;
    uint32_t vector, count = qfb_vector_count(job->file);
    if (!count)
        return trouble(job->path, "has no test vectors");
    for (vector = 0; vector < count; vector++) {
        watch_t watch = {0};
        watch.job = job, watch.vector = vector, watch.digests = qfb_vector_digests(job->file, vector);
        if (vector_inputs(job, vector) || make_plan(job))
            return TROUBLE;
        job->plan.after = compare_digests, job->plan.self = &watch;
        if (run(job) || compare_outputs(job, vector, &equal, &total))
            return TROUBLE;
        differs = differs || watch.differs;
    }
    printf("%s: %" PRIu64 " of %" PRIu64 " integers of %" PRIu32 " test vectors are equal\n", job->path, equal, total,
           count);
    return equal != total || differs;
}

/* ---- Arguments ---- */

static void close_model(job_t *job)
{
    int i;
    for (i = 0; i < MOST_INPUTS; i++)
        free(job->owned[i]);
    free(job->memory);
    free(job->arena);
    close_file(&job->opened);
}

/* NAME=1,3,224,224: the sizes of an input. */
static int set_shape(job_t *job, const char *text)
{
    qfb_list inputs = qfb_inputs(job->file);
    const char *equals = strrchr(text, '=');
    uint32_t i, k;
    for (i = 0; equals && i < inputs.count; i++) {
        qfb_tensor tensor;
        char *end = (char *)(uintptr_t)equals;
        if (qfb_get_tensor(job->file, (uint32_t)qfb_integer(&inputs, i), &tensor))
            return failed(job);
        if (tensor.name.size != (size_t)(equals - text) || memcmp(tensor.name.text, text, tensor.name.size))
            continue;
        for (k = 0; k < QFB_RUN_RANK && k < tensor.shape.count; k++) {
            const char *start = end + 1;
            errno = 0;
            job->sizes[i][k] = strtoll(start, &end, 10);
            if (end == start || errno || job->sizes[i][k] < 0
                || (*end ? *end != ',' : k + 1 < tensor.shape.count))
                break;
        }
        if (k != tensor.shape.count || *end)
            return trouble(text, "does not have one size for each dimension of the input");
        job->shapes[i] = job->sizes[i];
        return 0;
    }
    return trouble(text, "is not NAME=SIZE,SIZE... of an input");
}

typedef struct {
    char *files[MOST_INPUTS + 1], *shapes[MOST_INPUTS];
    uint32_t file_count, shape_count;
    int raw, lists;
} arguments_t;

static int usage(void)
{
    fputs("usage: qfb_run MODEL.qfb INPUT.bin... [--raw] [--shape NAME=1,3,224,224] [--work STEPS] [--memory BYTES]\n"
          "       qfb_run --vectors MODEL.qfb...\n"
          "       qfb_run --list MODEL.qfb [--shape NAME=...]\n", stderr);
    return TROUBLE;
}

/* A number of digits only: strtoull also takes a sign, and what is too large. */
static int set_number(const char *text, uint64_t *number)
{
    char *end = NULL;
    errno = 0;
    if (*text >= '0' && *text <= '9')
        *number = strtoull(text, &end, 10);
    return end && !*end && !errno ? 0 : trouble(text, "is not a whole number from 0 to 2^64 - 1");
}

static int parse(arguments_t *a, int count, char **given)
{
    int i, bad = 0;
    memset(a, 0, sizeof *a);
    for (i = 1; i < count; i++) {
        int has_value = i + 1 < count;
        if (!strcmp(given[i], "--raw"))
            a->raw = 1;
        else if (!strcmp(given[i], "--list"))
            a->lists = 1;
        else if (!strcmp(given[i], "--shape") && has_value && a->shape_count < MOST_INPUTS)
            a->shapes[a->shape_count++] = given[++i];
        else if (!strcmp(given[i], "--work") && has_value)
            bad = set_number(given[++i], &most_work) || bad;
        else if (!strcmp(given[i], "--memory") && has_value)
            bad = set_number(given[++i], &most_memory) || bad;
        else if (given[i][0] == '-' || a->file_count > MOST_INPUTS)
            return usage();
        else
            a->files[a->file_count++] = given[i];
    }
    return bad ? TROUBLE : a->file_count ? 0 : usage();
}

static int run_once(job_t *job, arguments_t *a)
{
    uint32_t i;
    for (i = 0; i < a->shape_count; i++)
        if (set_shape(job, a->shapes[i]))
            return TROUBLE;
    if (make_plan(job))
        return TROUBLE;
    if (a->lists)
        return list(job);
    return read_inputs(job, a->files + 1, a->file_count - 1) || run(job) ? TROUBLE : write_outputs(job, a->raw);
}

/* The status, unless what was printed is lost. */
static int ended(int status)
{
    return fflush(stdout) || ferror(stdout) ? trouble("stdout", "cannot be written") : status;
}

int main(int count, char **given)
{
    int worst = 0, status, i;
    arguments_t arguments;
    static job_t job;
    if (count > 2 && !strcmp(given[1], "--vectors")) {
        for (i = 2; i < count; i++) {
            status = open_model(&job, given[i]);
            status = status ? status : replay(&job);
            close_model(&job);
            worst = status > worst ? status : worst;
        }
        return ended(worst);
    }
    if (parse(&arguments, count, given))
        return TROUBLE;
    status = open_model(&job, arguments.files[0]);
    status = status ? status : run_once(&job, &arguments);
    close_model(&job);
    return ended(status);
}

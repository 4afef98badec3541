/* Runs many files in one process, as verdicts.c opens them: from stdin come sizes and files. The element i of an input
 * is quant_min + 7 * i modulo the size of its range (0..99 without a quantization); for each file a line says the code,
 * the rule that is broken, and a hash of the outputs. Little work and little memory are allowed. */
#include "../qfb_run.h"
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

enum { MOST_MEMORY = 1 << 22, MOST_WORK = 2000000, MOST_INPUTS = 8 };

static void *fresh(uint64_t size) { return malloc(size ? (size_t)size : 1); }

static void *made_input(qfb_file *file, const qfb_value_state *value, uint32_t index)
{
    uint64_t i, k, range = 100;
    int64_t low = 0;
    uint8_t *bytes = (uint8_t *)fresh(value->size);
    qfb_tensor tensor;
    if (!bytes || qfb_get_tensor(file, index, &tensor))
        return bytes;
    if (tensor.is_quantized) {
        low = tensor.quantization.quant_min;
        range = (uint64_t)(tensor.quantization.quant_max - low) + 1;
    }
    for (i = 0; i < value->count; i++)
        for (k = 0; k < value->width; k++)
            bytes[i * value->width + k] = (uint8_t)((uint64_t)(low + (int64_t)(7 * i % range)) >> (8 * k));
    return bytes;
}

static uint64_t hash_outputs(const qfb_plan *plan, uint32_t count)
{
    uint64_t hash = UINT64_C(14695981039346656037), k; /* FNV-1a */
    const qfb_value_state *output;
    uint32_t i;
    int byte;
    for (i = 0; i < count && !qfb_plan_output(plan, i, &output); i++)
        for (k = 0; k < output->count; k++)
            for (byte = 0; byte < 8; byte++)
                hash = (hash ^ ((uint64_t)qfb_element(output, k) >> (8 * byte) & 255)) * UINT64_C(1099511628211);
    return hash;
}

static void run(qfb_file *file, void **owned)
{
    uint32_t i, count = qfb_inputs(file).count;
    const void *inputs[MOST_INPUTS];
    const qfb_value_state *value;
    qfb_list list = qfb_inputs(file);
    qfb_plan plan;
    uint64_t hash = 0;
    if (count > MOST_INPUTS || !(owned[0] = fresh(qfb_plan_size(file)))) {
        printf("%d - 0\n", (int)QFB_MEMORY);
        return;
    }
    if (!qfb_plan_make(&plan, file, owned[0], qfb_plan_size(file), NULL, MOST_WORK) && plan.arena_size <= MOST_MEMORY) {
        for (i = 0; i < count && !qfb_plan_input(&plan, i, &value) && value->size <= MOST_MEMORY; i++)
            inputs[i] = owned[2 + i] = made_input(file, value, (uint32_t)qfb_integer(&list, i));
        owned[1] = fresh(plan.arena_size);
        if (i == count && owned[1] && !qfb_plan_run(&plan, owned[1], plan.arena_size, inputs))
            hash = hash_outputs(&plan, qfb_outputs(file).count);
    }
    printf("%d %s %016" PRIx64 "\n", (int)file->error.code, *file->error.rule ? file->error.rule : "-", hash);
}

int main(void)
{
    uint8_t head[4], *bytes;
    while (fread(head, 1, 4, stdin) == 4) {
        uint32_t size = qfb_u32_(head);
        void *owned[2 + MOST_INPUTS] = {0};
        qfb_file file;
        size_t i;
        if (!(bytes = (uint8_t *)fresh(size)) || fread(bytes, 1, size, stdin) != size)
            return 2;
        if (qfb_open(&file, bytes, size, QFB_CHECK_DATA))
            printf("%d %s 0\n", (int)file.error.code, file.error.rule);
        else
            run(&file, owned);
        fflush(stdout); /* whoever sends one file after the other waits for it */
        for (i = 0; i < sizeof owned / sizeof *owned; i++)
            free(owned[i]);
        free(bytes);
    }
    return 0;
}

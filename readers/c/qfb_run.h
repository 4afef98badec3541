/* qfb_run.h: runs integer-only networks (docs/spec/integer-only.md), by integer arithmetic alone. C99, no other
 * library, no allocation. Compile the files of run/ with your program.
 *
 *     qfb_plan plan;
 *     qfb_plan_make(&plan, &file, memory, qfb_plan_size(&file), NULL, 0);   shapes, and where everything will lie
 *     qfb_plan_run(&plan, arena, plan.arena_size, inputs);                  inputs: a pointer for each of the graph
 *     qfb_plan_output(&plan, 0, &output);
 *
 * Everything is checked before it is computed: a file that was made to do harm gives an error, as does one that would
 * take more work or memory than allowed. Failures are told in file->error, so threads need a `qfb_file` each, opened on
 * the same bytes. `memory` and `arena` are aligned to 8 bytes.
 *
 * Elements of inputs and outputs are integers of 1, 2, 4 or 8 bytes, little-endian, row-major; those of types of less
 * than 8 bits take a byte each. Constants that are dequantized are float32, told by its bits. */
#ifndef QFB_RUN_H
#define QFB_RUN_H

#include "qfb.h"

enum { QFB_RUN_RANK = 8 };

/* A tensor at run time. */
typedef struct {
    int64_t shape[QFB_RUN_RANK];
    uint64_t count;      /* elements */
    const uint8_t *data; /* first element; of computed tensors only at run time, of outputs after it, too */
    uint32_t rank;
    uint8_t dtype;  /* a qfb_dtype */
    uint8_t width;  /* bytes of an element */
    uint8_t packed; /* bits of an element of a constant that is packed, else 0 */
    uint8_t known;  /* whether the shape is known already */
    uint8_t in_arena;
    uint64_t offset, size; /* where in the arena, and how many bytes */
    uint32_t last_use;     /* the node after which it is not needed any more */
    uint32_t next;         /* the tensor that lies behind it in the arena */
} qfb_value_state;

/* A network, planned for inputs of certain shapes. `arena_size` bytes are needed to run it; `work` counts the steps of
 * inner loops, multiply-accumulates among them. `after`, if it is set, is called with `self` when a node has run: its
 * outputs can then be read with qfb_plan_value. The other fields are the library's own. */
typedef struct {
    qfb_file *file;
    uint64_t arena_size, work;
    void (*after)(void *self, uint32_t node);
    void *self;
    qfb_value_state *values;
    uint64_t work_limit, values_end, scratch_size;
    uint8_t *arena;
    uint32_t first;
} qfb_plan;

/* The bytes of memory that a plan of this file takes. */
size_t qfb_plan_size(const qfb_file *file);

/* Plan a network. `shapes` holds for each input of the graph a pointer to its sizes, as many as the tensor has
 * dimensions; NULL, or NULL for one of them: those of the file, where sizes that are not fixed are taken as 1. A network
 * that takes more than `work_limit` steps is refused (0: 10^12). */
qfb_code qfb_plan_make(qfb_plan *plan, qfb_file *file, void *memory, size_t size, const int64_t *const *shapes,
                       uint64_t work_limit);

/* Run it. The arena is used as long as outputs are read. Constants must have been checked: open with QFB_CHECK_DATA. */
qfb_code qfb_plan_run(qfb_plan *plan, void *arena, uint64_t size, const void *const *inputs);

/* The graph's input or output at `index`: shape and type once it is planned, data of outputs once it has run. */
qfb_code qfb_plan_input(const qfb_plan *plan, uint32_t index, const qfb_value_state **input);
qfb_code qfb_plan_output(const qfb_plan *plan, uint32_t index, const qfb_value_state **output);

/* The tensor at an index of the file, while `after` is called for a node that has computed it. */
const qfb_value_state *qfb_plan_value(const qfb_plan *plan, uint32_t index);

/* Whether integers have the digest that a test vector states: the first 16 bytes of the sha256 of what a file stores. */
int qfb_has_digest(const qfb_value_state *value, const uint8_t *digest);

/* The element at an index. */
int64_t qfb_element(const qfb_value_state *value, uint64_t index);

#endif

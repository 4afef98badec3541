/* How the programs tell what went wrong. */
#ifndef QFB_FAILURE_H
#define QFB_FAILURE_H

#include "qfb.h"
#include <inttypes.h>
#include <stdio.h>

/* Whether UTF-8 is a line separator, or changes the direction of what follows: U+200E, 200F, 2028-202E, 2066-2069. */
static int is_direction(unsigned a, unsigned b, unsigned c)
{
    unsigned code = 0x2000 + (b & 1) * 64 + (c & 0x3f);
    if (a != 0xe2 || b >> 1 != 0x40)
        return 0;
    return code >> 1 == 0x1007 || (code >= 0x2028 && code <= 0x202e) || (code >= 0x2066 && code <= 0x2069);
}

/* The character of an untrusted text at *i if it could drive a terminal, or begin or turn a line: *i is then its last
 * byte. -1 for any other. */
static int control(qfb_string s, uint32_t *i)
{
    unsigned char c = (unsigned char)s.text[*i], next = *i + 1 < s.size ? (unsigned char)s.text[*i + 1] : 0;
    unsigned char last = *i + 2 < s.size ? (unsigned char)s.text[*i + 2] : 0;
    if (is_direction(c, next, last))
        return *i += 2, 0x2000 + (next & 1) * 64 + (last & 0x3f);
    if (c == 0xc2 && next < 0xa0) /* U+0080 to U+009F, in UTF-8 */
        return *i += 1, next;
    return c < 0x20 || c == 0x7f ? c : -1;
}

/* A name, with such characters written out. */
static void print_name(FILE *to, qfb_string name)
{
    uint32_t i;
    for (i = 0; i < name.size; i++) {
        int code = control(name, &i);
        if (code < 0)
            fputc(name.text[i], to);
        else
            fprintf(to, code < 0x100 ? "\\x%02x" : "\\u%04x", (unsigned)code);
    }
}

/* What went wrong, where, what was not known, and which rule is broken; a node is told by what it computes as well. */
static void print_failure(const char *path, qfb_file *file)
{
    qfb_error e = file->error;
    qfb_string unknown;
    qfb_tensor tensor;
    qfb_node node;
    unknown.text = e.name, unknown.size = (uint32_t)strlen(e.name);
    fprintf(stderr, "%s: %s %" PRIu64, path, e.place, e.index);
    if (!strcmp(e.place, "node") && !qfb_get_node(file, (uint32_t)e.index, &node)) {
        fputs(" (", stderr), print_name(stderr, node.operator_name), fprintf(stderr, " %" PRIu32, node.version);
        fputs(node.name.size ? " " : "", stderr), print_name(stderr, node.name);
        fputs(node.rule.size ? ", rule " : "", stderr), print_name(stderr, node.rule), fputc(')', stderr);
    }
    if (e.code > QFB_INVALID && !strcmp(e.place, "tensor") && !qfb_get_tensor(file, (uint32_t)e.index, &tensor))
        fputs(" (", stderr), print_name(stderr, tensor.name), fputc(')', stderr);
    fprintf(stderr, ": %s%s", e.what, unknown.size || e.number ? ": " : ""), print_name(stderr, unknown);
    if (e.number)
        fprintf(stderr, "%" PRIu64, e.number);
    fprintf(stderr, "%s%s%s\n", *e.rule ? " (rule " : "", e.rule, *e.rule ? ")" : "");
}

#endif

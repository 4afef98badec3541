/* `length` numbers, each `step` after the other, less `zero`; then zeros, up to `padded`. */
static void pack(const X *restrict x, int32_t step, int32_t zero, int32_t length, int32_t padded, D *restrict row)
{
    if (step == 1) {
        for (int32_t k = 0; k < length; k++)
            row[k] = (D)(x[k] - zero);
    } else {
        for (int32_t k = 0; k < length; k++)
            row[k] = (D)(x[k * step] - zero);
    }
    for (int32_t k = length; k < padded; k++)
        row[k] = 0;
}

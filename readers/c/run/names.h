/* What these files share has the prefix of the library where they are linked, so that it is mistaken for nothing else. */
#ifndef QFB_NAMES_H
#define QFB_NAMES_H

#define axis_from_start qfb_axis_from_start_
#define copy_view qfb_copy_view_
#define f32_floor qfb_f32_floor_
#define f32_of_double qfb_f32_of_double_
#define f32_of_integer qfb_f32_of_integer_
#define f32_product qfb_f32_product_
#define f32_quotient qfb_f32_quotient_
#define f32_sum qfb_f32_sum_
#define node_affine qfb_node_affine_
#define node_axis qfb_node_axis_
#define node_broadcast qfb_node_broadcast_
#define node_constants qfb_node_constants_
#define node_fail qfb_node_fail_
#define node_give qfb_node_give_
#define node_give_like qfb_node_give_like_
#define node_input qfb_node_input_
#define node_int qfb_node_int_
#define node_integers qfb_node_integers_
#define node_ints qfb_node_ints_
#define node_is qfb_node_is_
#define node_moves qfb_node_moves_
#define node_output qfb_node_output_
#define node_plain_sums qfb_node_plain_sums_
#define node_range qfb_node_range_
#define node_scratch qfb_node_scratch_
#define node_sizes qfb_node_sizes_
#define node_tensor qfb_node_tensor_
#define node_truth qfb_node_truth_
#define node_word qfb_node_word_
#define node_work qfb_node_work_
#define node_zero_point qfb_node_zero_point_
#define node_zero_points qfb_node_zero_points_
#define put_sum qfb_put_sum_
#define scratch qfb_scratch_
#define times qfb_times_
#define view_broadcast qfb_view_broadcast_
#define view_next qfb_view_next_
#define view_start qfb_view_start_
#define window_positions qfb_window_positions_
#define window_product qfb_window_product_
#define window_read qfb_window_read_
#define window_shape qfb_window_shape_

#endif

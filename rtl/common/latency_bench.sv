// Test bench of latencies: modules side by side, which all move in each cycle.
//
// Interface: a word, of which each module takes its inputs, and `go`, which marks it as valid for
// streams, as a page of one beat. Each output belongs to the module of its name: `y_` is data, `v_`
// says that a beat leaves.
module latency_bench (
    input  logic         clk,
    input  logic         rst,
    input  logic         go,
    input  logic [255:0] word,
    output logic [36:0]  y_fadd,
    output logic [36:0]  y_fmul,
    output logic [15:0]  y_to_f16,
    output logic [15:0]  y_to_bf16,
    output logic [8:0]   y_to_int,
    output logic [7:0]   y_quant_lane,
    output logic [15:0]  y_dequant_lane,
    output logic [8:0]   y_qpack_code_lane,
    output logic [255:0] y_qpack_channel_enc,
    output logic [255:0] y_qpack_channel_dec,
    output logic [36:0]  y_oaken_decompose_lane,
    output logic [4:0]   y_oaken_code_lane,
    output logic [15:0]  y_oaken_value_lane,
    output logic         v_oaken_bounds,
    output logic         v_delta_enc,
    output logic         v_delta_dec,
    output logic         v_run_count,
    output logic         v_run_mark,
    output logic         v_run_parse,
    output logic         v_run_expand,
    output logic         v_page_max,
    output logic         v_crc32_stream,
    output logic         v_byte_pack,
    output logic         v_slice,
    output logic         v_fifo,
    output logic         v_page_split,
    output logic         v_fdiv,
    output logic         v_scale,
    output logic         v_oaken_grid,
    output logic         v_crc32_zeros,
    output logic         v_channel_front,
    output logic         v_port_share
);
  // Numbers from 1 to 256, and their negatives (float/from_f16.sv).
  logic [36:0] a, b, c, minus_a, minus_c;
  assign a = {3'd0, 7'd0, word[2:0], 1'b1, word[25:3]};
  assign b = {3'd0, 7'd0, word[28:26], 1'b1, word[51:29]};
  assign c = {3'd0, 7'd0, word[54:52], 1'b1, word[77:55]};
  assign minus_a = {a[36:35], 1'b1, a[33:0]};
  assign minus_c = {c[36:35], 1'b1, c[33:0]};
  logic [15:0] half;
  assign half = {word[78], 3'b011, word[90:79]};

  // Outputs of the same latency.
  logic [5429:0] unused;
  logic unused_bits;
  assign unused_bits = ^{unused, word[255:98]};

  fadd check_fadd (
      .clk,
      .en(1'b1),
      .a,
      .b,
      .y(y_fadd)
  );
  fmul check_fmul (
      .clk,
      .en(1'b1),
      .a,
      .b,
      .y(y_fmul)
  );
  to_f16 check_to_f16 (
      .clk,
      .en(1'b1),
      .x(a),
      .half(y_to_f16)
  );
  to_bf16 check_to_bf16 (
      .clk,
      .en(1'b1),
      .x(a),
      .bfloat(y_to_bf16)
  );
  to_int check_to_int (
      .clk,
      .en(1'b1),
      .x(a),
      .y(y_to_int)
  );
  quant_lane check_quant_lane (
      .clk,
      .en(1'b1),
      .bf16(1'b0),
      .value(half),
      .inverse(a),
      .code(y_quant_lane)
  );
  dequant_lane check_dequant_lane (
      .clk,
      .en(1'b1),
      .bf16(1'b0),
      .code(word[7:0]),
      .scale(b),
      .value(y_dequant_lane)
  );
  qpack_code_lane check_qpack_code_lane (
      .clk,
      .en(1'b1),
      .open(c),
      .mean(a),
      .inverse(b),
      .code(y_qpack_code_lane)
  );
  qpack_channel_enc check_qpack_channel_enc (
      .clk,
      .en(1'b1),
      .bf16(1'b0),
      .s_data(word),
      .s_tokens(5'd16),
      .s_mean(a),
      .s_inverse(b),
      .m_bytes(y_qpack_channel_enc),
      .m_count(unused[5:0]),
      .m_index(unused[9:6]),
      .m_bad(unused[10])
  );
  qpack_channel_dec check_qpack_channel_dec (
      .clk,
      .en(1'b1),
      .bf16(1'b0),
      .s_bytes(word),
      .s_index(word[97:94]),
      .s_mean(a),
      .s_step(b),
      .m_data(y_qpack_channel_dec)
  );
  oaken_decompose_lane check_oaken_decompose_lane (
      .clk,
      .en(1'b1),
      .bf16(1'b0),
      .value(half),
      .thresholds({c, minus_c, a, minus_a}),
      .group(unused[12:11]),
      .rest(y_oaken_decompose_lane)
  );
  oaken_code_lane check_oaken_code_lane (
      .clk,
      .en(1'b1),
      .rest(a),
      .least(minus_a),
      .inverse({3'd0, 10'h3fb, 1'b1, word[51:29]}),
      .below(5'd31),
      .above(5'd0),
      .code(y_oaken_code_lane)
  );
  oaken_value_lane check_oaken_value_lane (
      .clk,
      .en(1'b1),
      .bf16(1'b0),
      .code(word[4:0]),
      .step(b),
      .least(c),
      .bound(a),
      .value(y_oaken_value_lane)
  );
  oaken_bounds check_oaken_bounds (
      .clk,
      .rst,
      .en(1'b1),
      .s_valid(go),
      .s_last(1'b1),
      .s_bad(1'b0),
      .s_groups(64'd0),
      .s_rests({32{a}}),
      .done(v_oaken_bounds),
      .bounds(unused[108:13]),
      .bad(unused[109])
  );
  delta_enc check_delta_enc (
      .clk,
      .rst,
      .en(1'b1),
      .dim(16'd32),
      .s_valid(go),
      .s_codes(word),
      .s_last(1'b1),
      .m_valid(v_delta_enc),
      .m_codes(unused[365:110])
  );
  delta_dec check_delta_dec (
      .clk,
      .rst,
      .en(1'b1),
      .dim(16'd32),
      .s_valid(go),
      .s_codes(word),
      .s_last(1'b1),
      .s_user(1'b0),
      .m_valid(v_delta_dec),
      .m_codes(unused[621:366]),
      .m_last(unused[622]),
      .m_user(unused[623])
  );
  run_count check_run_count (
      .clk,
      .rst,
      .s_valid(go),
      .s_codes(word),
      .s_count(6'd32),
      .s_last(1'b1),
      .done(v_run_count),
      .bytes(unused[655:624]),
      .values(unused[687:656])
  );
  run_mark check_run_mark (
      .clk,
      .rst,
      .raw(1'b0),
      .s_valid(go),
      .s_ready(unused[688]),
      .s_codes(word),
      .s_count(6'd32),
      .s_last(1'b1),
      .s_user(1'b0),
      .m_valid(v_run_mark),
      .m_ready(1'b1),
      .m_codes(unused[944:689]),
      .m_literal(unused[976:945]),
      .m_ends(unused[1008:977]),
      .m_lengths(unused[1264:1009]),
      .m_last(unused[1265]),
      .m_user(unused[1266])
  );
  run_parse check_run_parse (
      .clk,
      .rst,
      .en(1'b1),
      .s_valid(go),
      .s_bytes(word),
      .s_count(6'd32),
      .s_raw(1'b0),
      .s_last(1'b1),
      .s_user(1'b0),
      .m_valid(v_run_parse),
      .m_bytes(unused[1522:1267]),
      .m_codes(unused[1554:1523]),
      .m_places(unused[2002:1555]),
      .m_start(unused[2007:2003]),
      .m_end(unused[2021:2008]),
      .m_cut(unused[2022]),
      .m_last(unused[2023]),
      .m_user(unused[2024])
  );
  run_expand check_run_expand (
      .clk,
      .rst,
      .s_valid(go),
      .s_ready(unused[2025]),
      .s_bytes(word),
      .s_count(6'd32),
      .s_raw(1'b1),
      .s_last(1'b1),
      .s_bad(1'b0),
      .s_values(32'd32),
      .s_user(1'b0),
      .m_valid(v_run_expand),
      .m_ready(1'b1),
      .m_codes(unused[2281:2026]),
      .m_count(unused[2287:2282]),
      .m_last(unused[2288]),
      .m_error(unused[2289]),
      .m_user(unused[2290])
  );
  page_max check_page_max (
      .clk,
      .rst,
      .s_valid(go),
      .s_ready(unused[2291]),
      .s_data({2{word}}),
      .s_count(6'd32),
      .s_last(1'b1),
      .m_valid(v_page_max),
      .m_ready(1'b1),
      .m_data(unused[2803:2292]),
      .m_count(unused[2809:2804]),
      .m_last(unused[2810]),
      .max_valid(unused[2811]),
      .max_ready(1'b1),
      .max_value(unused[2826:2812])
  );
  crc32_stream check_crc32_stream (
      .clk,
      .rst,
      .seed(32'd0),
      .fire(go),
      .data({2{word}}),
      .count(7'd64),
      .last(1'b1),
      .done(v_crc32_stream),
      .state(unused[2858:2827])
  );
  byte_pack check_byte_pack (
      .clk,
      .rst,
      .s_valid(go),
      .s_ready(unused[2859]),
      .s_data({2{word}}),
      .s_count(7'd64),
      .s_last(1'b1),
      .s_user(1'b0),
      .m_valid(v_byte_pack),
      .m_ready(1'b1),
      .m_data(unused[3371:2860]),
      .m_count(unused[3378:3372]),
      .m_last(unused[3379]),
      .m_user(unused[3380])
  );
  slice check_slice (
      .clk,
      .rst,
      .s_valid(go),
      .s_ready(unused[3381]),
      .s_data(word[7:0]),
      .m_valid(v_slice),
      .m_ready(1'b1),
      .m_data(unused[3389:3382])
  );
  fifo check_fifo (
      .clk,
      .rst,
      .s_valid(go),
      .s_ready(unused[3390]),
      .s_data(word[7:0]),
      .m_valid(v_fifo),
      .m_ready(1'b1),
      .m_data(unused[3398:3391]),
      .level(unused[3401:3399])
  );
  page_split check_page_split (
      .clk,
      .rst,
      .s_valid(go),
      .s_ready(unused[3402]),
      .s_address({word[38:6], 6'd0}),
      .s_beats(16'd1),
      .s_last(1'b1),
      .m_valid(v_page_split),
      .m_ready(1'b1),
      .m_address(unused[3441:3403]),
      .m_beats(unused[3448:3442]),
      .m_last(unused[3449])
  );
  fdiv check_fdiv (
      .clk,
      .rst,
      .start(go),
      .a,
      .b,
      .done(v_fdiv),
      .y(unused[3486:3450])
  );
  scale check_scale (
      .clk,
      .rst,
      .bf16(1'b0),
      .s_valid(go),
      .s_ready(unused[3487]),
      .s_max(half[14:0]),
      .m_valid(v_scale),
      .m_ready(1'b1),
      .m_scale(unused[3524:3488]),
      .m_inverse(unused[3561:3525]),
      .m_bad(unused[3562])
  );
  oaken_grid check_oaken_grid (
      .clk,
      .rst,
      .start(go),
      .least_half(16'd0),
      .most_half({1'b0, half[14:0]}),
      .done(v_oaken_grid),
      .least(unused[3599:3563]),
      .step(unused[3636:3600]),
      .inverse(unused[3673:3637]),
      .cut(unused[3679:3674])
  );
  // A number without bits.
  crc32_zeros check_crc32_zeros (
      .clk,
      .rst,
      .start(go),
      .state(word[31:0]),
      .bytes(24'd0),
      .done(v_crc32_zeros),
      .result(unused[3711:3680])
  );
  logic [15:0] channels;
  assign v_channel_front = |channels;
  channel_front check_channel_front (
      .clk,
      .rst,
      .weights({4{17'd1}}),
      .s_valid({3'd0, go}),
      .s_ready(unused[3715:3712]),
      .s_address(word),
      .s_tag(16'd0),
      .m_valid(channels),
      .m_ready(16'hffff),
      .m_address(unused[4739:3716]),
      .m_tag(unused[4835:4740])
  );
  port_share check_port_share (
      .clk,
      .rst,
      .s_valid({2'd0, go}),
      .s_ready(unused[4838:4836]),
      .s_address(word[191:0]),
      .s_write(3'd0),
      .s_data({2{word}}),
      .s_tag(12'd0),
      .m_valid(v_port_share),
      .m_ready(1'b1),
      .m_address(unused[4902:4839]),
      .m_write(unused[4903]),
      .m_data(unused[5415:4904]),
      .m_tag(unused[5421:5416]),
      .r_valid(1'b0),
      .r_ready(unused[5422]),
      .r_tag(6'd0),
      .a_valid(unused[5425:5423]),
      .a_ready(3'd7),
      .a_tag(unused[5429:5426])
  );
endmodule

// Test bench of latencies: modules side by side, which all move in each cycle.
//
// Interface: a word, of which each module takes its inputs, and `go`, which marks it as valid for
// streams, as a page of one beat. Each output belongs to the module of its name: `y_` is data, `v_`
// says that a beat leaves. Modules that need something before their beat get it with `go`, and the beat
// a cycle later.
module latency_bench (
    input  logic         clk,
    input  logic         rst,
    input  logic         go,
    input  logic [255:0] word,
    output logic [36:0]  y_fadd,
    output logic [36:0]  y_fmul,
    output logic [36:0]  y_fdiv_pipe,
    output logic [15:0]  y_to_f16,
    output logic [15:0]  y_to_bf16,
    output logic [15:0]  y_to_16,
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
    output logic         v_oaken_grids,
    output logic         v_crc32_zeros,
    output logic         v_channel_front,
    output logic         v_port_share,
    output logic         v_compact,
    output logic         v_page_fifo,
    output logic         v_run_emit,
    output logic         v_dma_write,
    output logic         v_translate,
    output logic         v_oaken_table,
    output logic         v_oaken_lines,
    output logic         v_oaken_fetch,
    output logic         v_channel_back,
    output logic         v_service_meter,
    output logic         v_byte_unpack,
    output logic         v_axi_lite_regs
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
  logic [12905:0] unused;
  logic unused_bits;
  assign unused_bits = ^{unused, word[255:98], unused_part, unused_back, unused_served, unused_grid, unused_grids, unused_mark};

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
  to_16 check_to_16 (
      .clk,
      .en(1'b1),
      .bf16(1'b0),
      .x(a),
      .value(y_to_16)
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
  fdiv_pipe check_fdiv_pipe (
      .clk,
      .en(1'b1),
      .a,
      .b,
      .y(y_fdiv_pipe)
  );
  oaken_grid check_oaken_grid (
      .clk,
      .rst,
      .en(1'b1),
      .s_valid(go),
      .s_sides(1'b1),
      .s_least(16'd0),
      .s_most({1'b0, half[14:0]}),
      .s_user(1'b0),
      .m_valid(v_oaken_grid),
      .m_least(unused[3599:3563]),
      .m_step(unused[3636:3600]),
      .m_inverse(unused[3673:3637]),
      .m_cut(unused[3679:3674]),
      .m_user(unused_grid)
  );
  logic unused_grid, unused_mark;
  logic [351:0] unused_grids;
  oaken_grids check_oaken_grids (
      .clk,
      .rst,
      .en(1'b1),
      .s_valid(go),
      .s_ready(unused_grids[0]),
      .s_bounds({3{1'b0, half[14:0], 16'd0}}),
      .s_user(1'b0),
      .m_valid(v_oaken_grids),
      .m_least(unused_grids[111:1]),
      .m_step(unused_grids[222:112]),
      .m_inverse(unused_grids[333:223]),
      .m_cuts(unused_grids[351:334]),
      .m_user(unused_mark)
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
  logic go_later;
  always_ff @(posedge clk) go_later <= go && !rst;
  compact check_compact (
      .clk,
      .rst,
      .en(1'b1),
      .s_valid(go),
      .s_data({2{word}}),
      .s_keep(word[63:0]),
      .s_user(1'b0),
      .m_valid(v_compact),
      .m_data(unused[5941:5430]),
      .m_count(unused[5948:5942]),
      .m_user(unused[5949])
  );
  // The page is stored before its tag.
  page_fifo #(
      .W(8),
      .DEPTH(4)
  ) check_page_fifo (
      .clk,
      .rst,
      .s_valid(go),
      .s_ready(unused[5950]),
      .s_data(word[7:0]),
      .s_last(1'b1),
      .c_valid(go_later),
      .c_ready(unused[5951]),
      .c_tag(word[15:8]),
      .m_valid(v_page_fifo),
      .m_ready(1'b1),
      .m_data(unused[5959:5952]),
      .m_first(unused[5960]),
      .m_last(unused[5961]),
      .m_tag(unused[5969:5962])
  );
  // A beat behind its page's header.
  run_emit check_run_emit (
      .clk,
      .rst,
      .s_valid(go),
      .s_ready(unused[5970]),
      .s_codes(word),
      .s_count(6'd32),
      .s_first(1'b0),
      .s_last(1'b1),
      .s_bad(1'b0),
      .s_runs(1'b0),
      .s_scale(32'd0),
      .m_valid(v_run_emit),
      .m_ready(1'b1),
      .m_data(unused[6482:5971]),
      .m_count(unused[6489:6483]),
      .m_last(unused[6490]),
      .m_bad(unused[6491])
  );
  // A piece of one line, then the line.
  dma_write check_dma_write (
      .clk,
      .rst,
      .p_valid(go),
      .p_ready(unused[6492]),
      .p_address({word[63:6], 6'd0}),
      .p_beats(16'd1),
      .p_last(1'b1),
      .p_fault(1'b0),
      .s_valid(go_later),
      .s_ready(unused[6493]),
      .s_data({2{word}}),
      .s_count(7'd64),
      .s_last(1'b1),
      .a_valid(v_dma_write),
      .a_ready(1'b1),
      .a_address(unused[6557:6494]),
      .a_data(unused[7069:6558]),
      .a_tag(unused[7073:7070]),
      .b_valid(v_dma_write),
      .b_ready(unused[7074]),
      .d_valid(unused[7075]),
      .d_ready(1'b1),
      .d_bytes(unused[7107:7076]),
      .d_bad(unused[7108])
  );
  // One page, which the first piece translates.
  logic unused_part;
  translate check_translate (
      .clk,
      .rst,
      .flush(1'b0),
      .root(52'd1),
      .s_valid({1'b0, go}),
      .s_ready(unused[7110:7109]),
      .s_address(78'd0),
      .s_beats({16'd0, 16'd1}),
      .s_last(2'b11),
      .m_valid({unused_part, v_translate}),
      .m_ready(2'b11),
      .m_address(unused[7238:7111]),
      .m_beats(unused[7252:7239]),
      .m_last(unused[7254:7253]),
      .m_fault(unused[7256:7255]),
      .w_valid(unused[7257]),
      .w_ready(1'b1),
      .w_address(unused[7321:7258]),
      .r_valid(1'b1),
      .r_ready(unused[7322]),
      .r_entry(64'h2001),
      .misses(unused[7354:7323])
  );
  oaken_table check_oaken_table (
      .clk,
      .rst,
      .clear(1'b0),
      .f_valid(1'b1),
      .f_ready(unused[7355]),
      .f_page(52'd3),
      .s_valid(go),
      .s_ready(unused[7356]),
      .s_head(word[2:0]),
      .s_data({2{word}}),
      .m_valid(v_oaken_table),
      .m_ready(1'b1),
      .m_address(unused[7420:7357]),
      .m_data(unused[7932:7421]),
      .full(unused[7933]),
      .q_valid(1'b0),
      .q_ready(unused[7934]),
      .q_head(3'd0),
      .p_valid(unused[7935]),
      .p_ready(1'b1),
      .p_address(unused[7999:7936]),
      .p_lines(unused[8006:8000]),
      .p_last(unused[8007])
  );
  // Two halves of a line.
  oaken_lines check_oaken_lines (
      .clk,
      .rst,
      .clear(1'b0),
      .s_valid(go || go_later),
      .s_ready(unused[8008]),
      .s_head(3'd0),
      .s_data(word),
      .s_count(6'd32),
      .m_valid(v_oaken_lines),
      .m_ready(1'b1),
      .m_head(unused[8011:8009]),
      .m_data(unused[8523:8012]),
      .t_head(3'd0),
      .t_data(unused[9035:8524]),
      .t_bytes(unused[9041:9036])
  );
  // One head with one line, and a memory that answers in the next cycle.
  logic fetched, fetched_last, asked, asked_before;
  logic [3:0] asked_tag, answer_tag;
  assign v_oaken_fetch = fetched && !fetched_last;
  always_ff @(posedge clk) begin
    asked_before <= asked && !rst;
    answer_tag   <= asked_tag;
  end
  oaken_fetch check_oaken_fetch (
      .clk,
      .rst,
      .start(go),
      .busy(unused[9042]),
      .heads(4'd1),
      .q_valid(unused[9043]),
      .q_ready(1'b1),
      .q_head(unused[9046:9044]),
      .p_valid(1'b1),
      .p_ready(unused[9047]),
      .p_address({word[63:12], 12'd0}),
      .p_lines(7'd1),
      .p_last(1'b1),
      .t_head(unused[9050:9048]),
      .t_data({2{word}}),
      .t_bytes(6'd1),
      .a_valid(asked),
      .a_ready(1'b1),
      .a_address(unused[9114:9051]),
      .a_tag(asked_tag),
      .r_valid(asked_before),
      .r_ready(unused[9115]),
      .r_tag(answer_tag),
      .r_data({2{word}}),
      .m_valid(fetched),
      .m_ready(1'b1),
      .m_data(unused[9627:9116]),
      .m_count(unused[9634:9628]),
      .m_last(fetched_last)
  );
  logic [2:0] unused_back, unused_served;
  channel_back check_channel_back (
      .clk,
      .rst,
      .s_valid({15'd0, go}),
      .s_ready(unused[9650:9635]),
      .s_tag(96'd0),
      .s_data({32{word}}),
      .m_valid({unused_back, v_channel_back}),
      .m_ready(4'hf),
      .m_tag(unused[9666:9651]),
      .m_data(unused[11714:9667])
  );
  service_meter check_service_meter (
      .clk,
      .rst,
      .asks({3'd0, go}),
      .takes({3'd0, go}),
      .ask_tags(16'd0),
      .answers({3'd0, go_later}),
      .answer_tags(16'd0),
      .depths(unused[11746:11715]),
      .served({unused_served, v_service_meter}),
      .cycles(unused[11810:11747])
  );
  // The reader takes the page's bytes when they come, and goes on to the next.
  logic [6:0] bytes_available;
  assign v_byte_unpack = bytes_available != 7'd0;
  byte_unpack check_byte_unpack (
      .clk,
      .rst,
      .s_valid(go),
      .s_ready(unused[11811]),
      .s_data({2{word}}),
      .s_count(7'd64),
      .s_last(1'b1),
      .window(unused[12323:11812]),
      .avail(bytes_available),
      .ends(unused[12324]),
      .more(unused[12325]),
      .take(bytes_available),
      .drop(v_byte_unpack)
  );
  axi_lite_regs check_axi_lite_regs (
      .clk,
      .rst,
      .aw_valid(1'b0),
      .aw_ready(unused[12326]),
      .aw_address(8'd0),
      .w_valid(1'b0),
      .w_ready(unused[12327]),
      .w_data(word[31:0]),
      .b_valid(unused[12328]),
      .b_ready(1'b1),
      .ar_valid(go),
      .ar_ready(unused[12329]),
      .ar_address(word[7:0]),
      .r_valid(v_axi_lite_regs),
      .r_ready(1'b1),
      .r_data(unused[12361:12330]),
      .header(unused[12489:12362]),
      .table_write(unused[12490]),
      .table_at(unused[12506:12491]),
      .table_word(unused[12698:12507]),
      .page_encoded(1'b0),
      .page_declined(1'b0),
      .page_decoded(1'b0),
      .page_refused(1'b0),
      .root(unused[12750:12699]),
      .alpha(unused[12759:12751]),
      .flush(unused[12760]),
      .misses(word[31:0]),
      .weights(word[67:0]),
      .thresholds(unused[12888:12761]),
      .row(unused[12904:12889]),
      .clear(unused[12905]),
      .tokens(word[31:0]),
      .rejected(word[31:0])
  );
endmodule

// Oaken's quantization engine (Oaken §5.2, Figure 9a): decomposer, bounds, grids, quantizers, and
// the zero-remove shifter, for three groups with outliers of five bits (4/90/6 in Table 3).
//
// Interface: beats of 32 halves or bfloats (`bf16`) of a token in, `[head][channel]`, its last beat marked; heads have
// a multiple of 64 channels. `thresholds` are singles: the outer interval's ends, then the inner
// one's; they and `bf16` stay while tokens are inside. For each beat out: dense codes, four bits a channel;
// outlier entries (place, group, fifth bit), a byte each, and their number; the token's bounds,
// least and greatest half of each group; marks of the first and last beat of a token. `m_bad`
// stays for a token: it has values that are not finite or too large, and no codes.
// Latency from a token's last beat to its first: 59 cycles. Initiation interval 1 for tokens of at most
// DEPTH - 40 beats; longer ones, of at most DEPTH, wait in the buffer for their grids.
module oaken_encode #(
    parameter int DEPTH = 128
) (
    input  logic         clk,
    input  logic         rst,
    input  logic         bf16,
    input  logic [127:0] thresholds,
    input  logic         s_valid,
    output logic         s_ready,
    input  logic [511:0] s_data,
    input  logic         s_last,
    output logic         m_valid,
    input  logic         m_ready,
    output logic [127:0] m_dense,
    output logic [255:0] m_entries,
    output logic [5:0]   m_outliers,
    output logic [95:0]  m_bounds,
    output logic         m_first,
    output logic         m_last,
    output logic         m_bad
);
  // Decomposer: four stages.
  logic en, room, d_valid, fifo_ready;
  logic [147:0] open_thresholds;
  logic [63:0] groups;
  logic [1183:0] rests;
  logic [31:0] infinite;
  logic [3:0] valid, lasts, bads;
  logic [3:0] waiting;

  assign d_valid = valid[3];
  assign en = !d_valid || fifo_ready;
  assign room = waiting < 4'd4;
  assign s_ready = en && room;

  for (genvar k = 0; k < 4; k++) begin : g_threshold
    from_f32 opening (
        .single(thresholds[k*32+:32]),
        .open(open_thresholds[k*37+:37])
    );
  end
  for (genvar i = 0; i < 32; i++) begin : g_decompose
    // Not finite, or a bfloat from 2^121 on, whose rest is too large for any bound.
    assign infinite[i] = s_data[i*16+10+:5] == 5'd31;
    oaken_decompose_lane lane (
        .clk,
        .en,
        .bf16,
        .value(s_data[i*16+:16]),
        .thresholds(open_thresholds),
        .group(groups[i*2+:2]),
        .rest(rests[i*37+:37])
    );
  end
  always_ff @(posedge clk) begin
    if (en) begin
      valid <= {valid[2:0], s_valid && room};
      lasts <= {lasts[2:0], s_last};
      bads  <= {bads[2:0], |infinite};
    end
    if (rst) valid <= '0;
  end

  // Bounds run on while the token buffer is full, because it waits for them.
  logic bounded, bounds_bad, b_valid, b_bad, b_ready, c_valid, c_ready, c_bad, unused_ready;
  logic [95:0] bounds, b_bounds;
  oaken_bounds bounding (
      .clk,
      .rst,
      .en(1'b1),
      .s_valid(d_valid && fifo_ready),
      .s_last(lasts[3]),
      .s_bad(bads[3]),
      .s_groups(groups),
      .s_rests(rests),
      .done(bounded),
      .bounds,
      .bad(bounds_bad)
  );
  // The input stops at four tokens in this queue, and four more fit in the stages before it.
  fifo #(
      .W(97),
      .DEPTH(8)
  ) tokens (
      .clk,
      .rst,
      .s_valid(bounded),
      .s_ready(unused_ready),
      .s_data({bounds_bad, bounds}),
      .m_valid(b_valid),
      .m_ready(b_ready && t_room),
      .m_data({b_bad, b_bounds}),
      .level(waiting)
  );

  // Grids of tokens; their bounds wait beside them. The grids have room for 18 tokens.
  logic t_room, unused_bounded;
  logic [95:0] c_bounds;
  logic [5:0] unused_level;
  logic [110:0] least, inverse, unused_step;
  logic [17:0] cuts;
  logic [29:0] sides;
  oaken_grids #(
      .STEP(1'b0)
  ) grids (
      .clk,
      .rst,
      .en(!c_valid || c_ready),
      .s_valid(b_valid && t_room),
      .s_ready(b_ready),
      .s_bounds(b_bounds),
      .s_user(b_bad),
      .m_valid(c_valid),
      .m_least(least),
      .m_step(unused_step),
      .m_inverse(inverse),
      .m_cuts(cuts),
      .m_user(c_bad)
  );
  fifo #(
      .W(96),
      .DEPTH(32)
  ) bounds_of_grids (
      .clk,
      .rst,
      .s_valid(b_valid && b_ready),
      .s_ready(t_room),
      .s_data(b_bounds),
      .m_valid(unused_bounded),
      .m_ready(c_valid && c_ready),
      .m_data(c_bounds),
      .level(unused_level)
  );
  // The codes of both sides that are nearest to the cut. The middle group has four bits.
  for (genvar g = 0; g < 3; g++) begin : g_sides
    localparam logic [5:0] Codes = (g == 1) ? 6'd16 : 6'd32;
    logic [5:0] cut, below, above;
    assign cut = cuts[g*6+:6];
    always_comb begin
      if (g == 2) begin
        below = Codes - 6'd1;
        above = 6'd0;
      end else begin
        below = (cut == 6'd0) ? 6'd0 : cut - 6'd1;
        above = (cut == Codes) ? Codes - 6'd1 : cut;
      end
    end
    assign sides[g*10+:10] = {below[4:0], above[4:0]};
    logic unused_top;
    assign unused_top = below[5] ^ above[5];
  end

  localparam int GridBits = 111 + 111 + 30;
  logic q_valid, q_ready, q_first, q_last, q_bad;
  logic [63:0] q_groups;
  logic [1183:0] q_rests;
  logic [110:0] q_least, q_inverse;
  logic [29:0] q_sides;
  logic [95:0] q_bounds;
  page_fifo #(
      .W(1248),
      .DEPTH(DEPTH),
      .T(GridBits + 97)
  ) buffer (
      .clk,
      .rst,
      .s_valid(d_valid),
      .s_ready(fifo_ready),
      .s_data({groups, rests}),
      .s_last(lasts[3]),
      .c_valid,
      .c_ready,
      .c_tag({c_bad, c_bounds, least, inverse, sides}),
      .m_valid(q_valid),
      .m_ready(q_ready),
      .m_data({q_groups, q_rests}),
      .m_first(q_first),
      .m_last(q_last),
      .m_tag({q_bad, q_bounds, q_least, q_inverse, q_sides})
  );

  // Quantizers: eight stages. Then the shifter: six.
  localparam int U = 128 + 96 + 3;
  logic go;
  logic [7:0] code_valid;
  logic [63:0] code_groups[0:7];
  logic [98:0] code_user[0:7];
  logic [31:0] odd;
  logic [255:0] entries;
  logic [31:0] outlier;
  logic [127:0] dense;
  logic half;
  logic [7:0] halves;

  assign go = !m_valid || m_ready;
  assign q_ready = go;

  for (genvar i = 0; i < 32; i++) begin : g_code
    logic [1:0] group, code_group;
    logic [4:0] code;
    logic [36:0] lane_least, lane_inverse;
    logic [9:0] lane_sides;
    assign group = q_groups[i*2+:2];
    always_comb begin
      case (group)
        2'd0: {lane_least, lane_inverse, lane_sides} = {q_least[36:0], q_inverse[36:0], q_sides[9:0]};
        2'd1: {lane_least, lane_inverse, lane_sides} = {q_least[73:37], q_inverse[73:37], q_sides[19:10]};
        default:
        {lane_least, lane_inverse, lane_sides} = {q_least[110:74], q_inverse[110:74], q_sides[29:20]};
      endcase
    end
    oaken_code_lane quantizer (
        .clk,
        .en(go),
        .rest(q_rests[i*37+:37]),
        .least(lane_least),
        .inverse(lane_inverse),
        .below(lane_sides[9:5]),
        .above(lane_sides[4:0]),
        .code
    );
    assign code_group = code_groups[7][i*2+:2];
    assign dense[i*4+:4] = code[3:0];
    assign odd[i] = code[4];
    assign outlier[i] = code_group != 2'd1 && !code_user[7][0];
    // Place in the block of 64 channels, group, fifth bit.
    assign entries[i*8+:8] = {odd[i], code_group == 2'd2, halves[7], 5'(i)};
  end
  for (genvar k = 0; k < 8; k++) begin : g_delay
    logic [63:0] groups_q;
    logic [98:0] user_q;
    always_ff @(posedge clk)
      if (go) begin
        groups_q <= (k == 0) ? q_groups : code_groups[(k == 0) ? 0 : k-1];
        user_q <= (k == 0) ? {q_bounds, q_first, q_last, q_bad} : code_user[(k == 0) ? 0 : k-1];
      end
    assign code_groups[k] = groups_q;
    assign code_user[k] = user_q;
  end
  always_ff @(posedge clk) begin
    if (go) begin
      code_valid <= {code_valid[6:0], q_valid};
      halves <= {halves[6:0], half};
      // A head has whole blocks, so the half of a block alternates.
      if (q_valid) half <= !half && !q_last;
    end
    if (rst) begin
      code_valid <= '0;
      half <= 1'b0;
    end
  end

  compact #(
      .N(32),
      .W(8),
      .U(U)
  ) remove_zeros (
      .clk,
      .rst,
      .en(go),
      .s_valid(code_valid[7]),
      .s_data(entries),
      .s_keep(outlier),
      .s_user({dense, code_user[7]}),
      .m_valid,
      .m_data(m_entries),
      .m_count(m_outliers),
      .m_user({m_dense, m_bounds, m_first, m_last, m_bad})
  );
endmodule

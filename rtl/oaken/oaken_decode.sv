// Oaken's dequantization engine (Oaken §5.2, Figure 9b): grids of a page's tokens, the zero-insert
// shifter, and dequantizers, for three groups with outliers of five bits.
//
// Interface: first the bounds of each token, six halves, of which the page's last is marked. Then
// for each head, token and block of 64 channels: the number of outliers and 32 bytes of dense codes
// in one stream of blocks, and the entries in a stream of beats of 64 bytes with a count, the
// page's last marked. Beats of 32 halves or bfloats out, two for a block. `m_error` in the last beat: the
// entries are more or fewer than the numbers, or bounds are not finite or in reverse order.
// `row_blocks`, the blocks of a token of a head, `heads` and `bf16` stay while pages are inside; a page
// has at most TOKENS tokens.
// Latency 12 cycles from a block to its first beat, and 36 more if its token's bounds come with it.
// Initiation interval 1 for a beat, 2 for bounds, which may be a page ahead of the blocks; a page takes
// a cycle more for the end of its entries.
module oaken_decode #(
    parameter int TOKENS = 64
) (
    input  logic         clk,
    input  logic         rst,
    input  logic         bf16,
    input  logic [127:0] thresholds,
    input  logic [7:0]   row_blocks,
    input  logic [7:0]   heads,
    input  logic         t_valid,
    output logic         t_ready,
    input  logic [95:0]  t_bounds,
    input  logic         t_last,
    input  logic         d_valid,
    output logic         d_ready,
    input  logic [255:0] d_dense,
    input  logic [7:0]   d_outliers,
    input  logic         e_valid,
    output logic         e_ready,
    input  logic [511:0] e_data,
    input  logic [6:0]   e_count,
    input  logic         e_last,
    output logic         m_valid,
    input  logic         m_ready,
    output logic [511:0] m_data,
    output logic         m_last,
    output logic         m_error
);
  localparam int A = $clog2(TOKENS);
  localparam int GridBits = 37 + 37 + 6;

  // Grids of tokens, in a ring with room for two pages: bounds of later pages come while blocks of
  // this one leave. An entry also says whether its token is the page's last one, and whether its
  // bounds are unsound.
  logic [A+1:0] taken, filled, base, at, next;
  logic room, accepts, grids_ready, grid_valid, grid_bad, grid_last, there, token_ends, unsound;
  logic [110:0] leasts, steps, unused_inverse;
  logic [17:0] cuts;
  logic [3*GridBits-1:0] grid, table_out;
  logic [3*GridBits+1:0] grids[0:2*TOKENS-1];

  assign room = taken - base != (A + 2)'(2 * TOKENS);
  assign t_ready = grids_ready && room;
  assign accepts = t_valid && t_ready;
  oaken_grids #(
      .U(2)
  ) of_tokens (
      .clk,
      .rst,
      .en(1'b1),
      .s_valid(t_valid && room),
      .s_ready(grids_ready),
      .s_bounds(t_bounds),
      .s_user({sound != 3'b111, t_last}),
      .m_valid(grid_valid),
      .m_least(leasts),
      .m_step(steps),
      .m_inverse(unused_inverse),
      .m_cuts(cuts),
      .m_user({grid_bad, grid_last})
  );
  for (genvar g = 0; g < 3; g++) begin : g_grid
    assign grid[g*GridBits+:GridBits] = {leasts[g*37+:37], steps[g*37+:37], cuts[g*6+:6]};
  end
  assign {unsound, token_ends, table_out} = grids[at[A:0]];
  assign there = at != filled;
  assign next = at + 1'b1;

  // Bounds of each group: finite, and the least is not above the greatest. Zeros of both signs are
  // equal.
  logic [2:0] sound;
  for (genvar g = 0; g < 3; g++) begin : g_sound
    logic [15:0] low, high;
    logic signed [15:0] low_order, high_order;
    assign low = t_bounds[g*32+:16];
    assign high = t_bounds[g*32+16+:16];
    assign low_order = low[15] ? -{1'b0, low[14:0]} : {1'b0, low[14:0]};
    assign high_order = high[15] ? -{1'b0, high[14:0]} : {1'b0, high[14:0]};
    assign sound[g] = low[14:10] != 5'd31 && high[14:10] != 5'd31 && low_order <= high_order;
  end

  // Blocks. A block's entries are in the window as soon as all of them arrived.
  logic en, go, half, ends, more, drop, page_ends, row_ends, is_last_head, too_few, too_many, fails, enough, known;
  logic [511:0] window;
  logic [6:0] avail, take, count;
  logic [7:0] block, head;
  byte_unpack unpack (
      .clk,
      .rst,
      .s_valid(e_valid),
      .s_ready(e_ready),
      .s_data(e_data),
      .s_count(e_count),
      .s_last(e_last),
      .window,
      .avail,
      .ends,
      .more,
      .take,
      .drop
  );
  assign count = d_outliers[6:0];
  assign row_ends = block == row_blocks - 8'd1;
  assign page_ends = half && row_ends && token_ends && is_last_head;
  assign is_last_head = head == heads - 8'd1;
  assign enough = avail >= count && !d_outliers[7];
  // The entries' end must be known with the page's last block.
  assign known = !page_ends || ends || more || avail > count;
  assign too_few = (ends && avail < count) || d_outliers[7] || count > 7'd64;
  assign too_many = page_ends && (!ends || avail > count);
  assign go = there && d_valid && (too_few || unsound || (enough && known));
  assign fails = too_few || too_many || unsound;
  // Blocks of a page that failed are skipped, without output.
  logic failed;
  assign d_ready = failed ? there : en && go && half;
  assign take = (go && en && half && !failed) ? (fails ? 7'd0 : count) : 7'd0;
  assign drop = go && en && half && !failed && (fails || page_ends);

  logic [31:0] outlier, inner, fifth;
  oaken_insert insert_zeros (
      .entries(window),
      .count,
      .half,
      .outlier,
      .inner,
      .fifth
  );

  logic a_valid, a_last, a_error, moves;
  logic [127:0] a_dense;
  logic [31:0] a_outlier, a_inner, a_fifth;
  logic [3*GridBits-1:0] a_grid;
  assign en = !m_valid || m_ready;
  // A page moves on by half a block, also through blocks that are skipped.
  assign moves = failed ? there && d_valid : en && go;

  always_ff @(posedge clk) begin
    if (accepts) taken <= taken + 1'b1;
    if (grid_valid) begin
      grids[filled[A:0]] <= {grid_bad, grid_last, grid};
      filled <= filled + 1'b1;
    end
    if (en) begin
      a_valid <= go && !failed && (!fails || half);
      a_last <= (half && fails) || page_ends;
      a_error <= fails;
      a_dense <= half ? d_dense[255:128] : d_dense[127:0];
      a_outlier <= outlier;
      a_inner <= inner;
      a_fifth <= fifth;
      a_grid <= table_out;
    end
    if (moves) begin
      half <= !half && !failed;
      if (half || failed) begin
        half  <= 1'b0;
        block <= row_ends ? 8'd0 : block + 8'd1;
        // Each head reads the page's grids from the first on.
        if (row_ends) at <= (token_ends && !is_last_head) ? base : next;
        if (row_ends && token_ends) head <= is_last_head ? '0 : head + 8'd1;
        if (!failed && fails) failed <= 1'b1;
        if (row_ends && token_ends && is_last_head) begin
          failed <= 1'b0;
          base <= next;
        end
      end
    end
    if (rst) begin
      taken <= '0;
      filled <= '0;
      base <= '0;
      at <= '0;
      failed <= 1'b0;
      block <= '0;
      head <= '0;
      half <= 1'b0;
      a_valid <= 1'b0;
    end
  end

  // Codes with the numbers of their group, then values.
  logic [36:0] open_thresholds[0:3];
  for (genvar k = 0; k < 4; k++) begin : g_threshold
    logic [36:0] threshold;
    from_f32 opening (
        .single(thresholds[k*32+:32]),
        .open(threshold)
    );
    assign open_thresholds[k] = threshold;
  end
  for (genvar j = 0; j < 32; j++) begin : g_lane
    logic [4:0] code, b_code;
    logic [5:0] cut;
    logic [36:0] step, least, bound, b_step, b_least, b_bound;
    assign code = {a_outlier[j] && a_fifth[j], a_dense[j*4+:4]};
    always_comb begin
      if (!a_outlier[j]) {least, step, cut} = a_grid[GridBits+:GridBits];
      else if (a_inner[j]) {least, step, cut} = a_grid[2*GridBits+:GridBits];
      else {least, step, cut} = a_grid[0+:GridBits];
      if (a_outlier[j] && a_inner[j]) bound = 37'h0800000000;
      else if (a_outlier[j]) bound = ({1'b0, code} < cut) ? open_thresholds[0] : open_thresholds[1];
      else bound = ({1'b0, code} < cut) ? open_thresholds[2] : open_thresholds[3];
    end
    always_ff @(posedge clk)
      if (en) begin
        b_code  <= code;
        b_step  <= step;
        b_least <= least;
        b_bound <= bound;
      end
    oaken_value_lane dequantizer (
        .clk,
        .en,
        .bf16,
        .code(b_code),
        .step(b_step),
        .least(b_least),
        .bound(b_bound),
        .value(m_data[j*16+:16])
    );
  end

  logic [10:0] valid, lasts, errors;
  always_ff @(posedge clk) begin
    if (en) begin
      valid  <= {valid[9:0], a_valid};
      lasts  <= {lasts[9:0], a_last};
      errors <= {errors[9:0], a_error};
    end
    if (rst) valid <= '0;
  end
  assign m_valid = valid[10];
  assign m_last  = lasts[10];
  assign m_error = errors[10];
endmodule

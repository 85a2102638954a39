// Bytes of one channel of sixteen tokens: the least width that fits all codes, and the codes in
// pairs, `code(t) + levels · code(t + 4)` (crates/codec/src/qpack.rs).
//
// Interface: a stalling pipeline, which moves while `en`. Sixteen halves or bfloats (`bf16`) with
// their number, mean and inverse step in; the width's index, up to 32 bytes and their number out. Missing tokens have
// the code of the mean. `m_bad`: a value is not finite as a half. Codes of no width are halves.
// Latency 11 cycles, initiation interval 1.
module qpack_channel_enc (
    input  logic         clk,
    input  logic         en,
    input  logic         bf16,
    input  logic [255:0] s_data,
    input  logic [4:0]   s_tokens,
    input  logic [36:0]  s_mean,
    input  logic [36:0]  s_inverse,
    output logic [255:0] m_bytes,
    output logic [5:0]   m_count,
    output logic [3:0]   m_index,
    output logic         m_bad
);
  // Stage 7 has codes, stage 8 the least and the greatest, stage 9 the width, stage 10 the pairs.
  logic [255:0] halves[0:9];
  logic bads[1:9];
  logic [15:0] used[0:6];
  logic [16*9-1:0] codes, codes_8, codes_9;
  logic [15:0] infinite, present;
  logic [255:0] narrowed;

  for (genvar i = 0; i < 16; i++) begin : g_lane
    assign present[i] = 5'(i) < s_tokens;
    logic [8:0] code;
    logic [36:0] open;
    from_16 opening (
        .bf16,
        .value(s_data[i*16+:16]),
        .open
    );
    to_f16 narrowing (
        .clk,
        .en,
        .x(open),
        .half(narrowed[i*16+:16])
    );
    assign halves[0][i*16+:16] = used[0][i] ? narrowed[i*16+:16] : 16'd0;
    assign infinite[i] = halves[0][i*16+10+:5] == 5'd31;
    qpack_code_lane lane (
        .clk,
        .en,
        .open,
        .mean(s_mean),
        .inverse(s_inverse),
        .code
    );
    assign codes[i*9+:9] = used[6][i] ? code : 9'd0;
  end

  for (genvar k = 1; k < 10; k++) begin : g_delay
    logic [255:0] halves_q;
    logic bad_q;
    always_ff @(posedge clk)
      if (en) begin
        halves_q <= halves[k-1];
        bad_q <= (k == 1) ? |infinite : bads[(k == 1) ? 1 : k-1];
      end
    assign halves[k] = halves_q;
    assign bads[k] = bad_q;
  end
  for (genvar k = 0; k < 7; k++) begin : g_used
    logic [15:0] used_q;
    always_ff @(posedge clk) if (en) used_q <= (k == 0) ? present : used[(k == 0) ? 0 : k-1];
    assign used[k] = used_q;
  end

  // Least and greatest of sixteen codes.
  for (genvar k = 0; k <= 4; k++) begin : g_row
    logic [(16>>k)*9-1:0] least, most;
    for (genvar i = 0; i < (16 >> k); i++) begin : g_pick
      if (k == 0) begin : g_in
        assign least[i*9+:9] = codes[i*9+:9];
        assign most[i*9+:9] = codes[i*9+:9];
      end else begin : g_two
        logic signed [8:0] low_a, low_b, high_a, high_b;
        assign low_a = g_row[k-1].least[2*i*9+:9];
        assign low_b = g_row[k-1].least[(2*i+1)*9+:9];
        assign high_a = g_row[k-1].most[2*i*9+:9];
        assign high_b = g_row[k-1].most[(2*i+1)*9+:9];
        assign least[i*9+:9] = (low_a < low_b) ? low_a : low_b;
        assign most[i*9+:9] = (high_a > high_b) ? high_a : high_b;
      end
    end
  end

  logic signed [8:0] least_8, most_8;
  logic [14:0] fits;
  logic [3:0] index, index_9, index_10;
  for (genvar k = 0; k < 15; k++) begin : g_fit
    logic [5:0] unused_bytes;
    logic [7:0] levels;
    logic [6:0] center;
    logic [21:0] unused_inverse;
    logic signed [9:0] low, high;
    qpack_width width (
        .index(k),
        .bytes(unused_bytes),
        .levels,
        .center,
        .inverse(unused_inverse)
    );
    assign low = -{3'd0, center};
    assign high = {2'd0, levels} - {3'd0, center};
    assign fits[k] = 10'(least_8) >= low && 10'(most_8) < high;
  end
  always_comb begin
    index = 4'd15;
    for (int k = 14; k >= 0; k--) if (fits[k]) index = 4'(k);
  end

  // Pairs of the width.
  logic [5:0] unused_pair_bytes, count;
  logic [7:0] levels;
  logic [6:0] center;
  logic [21:0] unused_pair_inverse, unused_count_inverse;
  logic [7:0] unused_count_levels;
  logic [6:0] unused_count_center;
  logic [8*14-1:0] pairs, pairs_10;

  qpack_width chosen (
      .index(index_9),
      .bytes(unused_pair_bytes),
      .levels,
      .center,
      .inverse(unused_pair_inverse)
  );
  for (genvar p = 0; p < 8; p++) begin : g_pair
    // Tokens of a pair are four apart: 0 to 3 and 4 to 7, then 8 to 11 and 12 to 15.
    localparam int First = p % 4 + p / 4 * 8;
    logic [6:0] low, high;
    assign low = codes_9[First*9+:7] + center;
    assign high = codes_9[(First+4)*9+:7] + center;
    assign pairs[p*14+:14] = {7'd0, low} + {7'd0, high} * {6'd0, levels};
  end

  // Pairs side by side, `count` bits each.
  logic [127:0] bits;
  qpack_width packing (
      .index(index_10),
      .bytes(count),
      .levels(unused_count_levels),
      .center(unused_count_center),
      .inverse(unused_count_inverse)
  );
  always_comb begin
    bits = '0;
    for (int k = 2; k <= 14; k++)
      if (count == 6'(k)) for (int p = 0; p < 8; p++) bits = bits | (128'(pairs_10[p*14+:14]) << (p * k));
  end

  always_ff @(posedge clk)
    if (en) begin
      codes_8 <= codes;
      least_8 <= g_row[4].least;
      most_8 <= g_row[4].most;
      codes_9 <= codes_8;
      index_9 <= index;
      pairs_10 <= pairs;
      index_10 <= index_9;
      m_index <= index_10;
      m_count <= count;
      m_bytes <= (index_10 == 4'd15) ? halves[9] : {128'd0, bits};
      m_bad <= bads[9];
    end

  logic unused;
  always_comb begin
    unused = 1'b0;
    for (int i = 0; i < 16; i++) unused = unused ^ codes_9[i*9+7] ^ codes_9[i*9+8];
  end
endmodule

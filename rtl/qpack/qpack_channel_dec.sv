// Values of one channel of sixteen tokens: (code - center) · step, rounded as a single, plus the
// mean, rounded again and then as a half or a bfloat (crates/codec/src/qpack.rs).
//
// Interface: a stalling pipeline, which moves while `en`. Up to 32 bytes, the width's index, step
// and mean in; sixteen values out. Codes of no width are halves.
// Latency 11 cycles, initiation interval 1.
module qpack_channel_dec (
    input  logic         clk,
    input  logic         en,
    input  logic         bf16,
    input  logic [255:0] s_bytes,
    input  logic [3:0]   s_index,
    input  logic [36:0]  s_mean,
    input  logic [36:0]  s_step,
    output logic [255:0] m_data
);
  localparam int Stages = 10;

  // Stage 1: pairs. Stage 2: quotients by the number of codes. Stage 3: remainders. Stage 4: codes
  // as open numbers. Stages 5 and 6: products; 7 to 9: sums; 10: halves; 11: the choice.
  logic [5:0] count;
  logic [7:0] unused_levels;
  logic [6:0] unused_center;
  logic [21:0] unused_inverse;
  qpack_width width (
      .index(s_index),
      .bytes(count),
      .levels(unused_levels),
      .center(unused_center),
      .inverse(unused_inverse)
  );

  logic [8*14-1:0] pairs, pairs_1;
  always_comb begin
    pairs = '0;
    for (int k = 2; k <= 14; k++)
      if (count == 6'(k))
        for (int p = 0; p < 8; p++)
          pairs[p*14+:14] = 14'(s_bytes[127:0] >> (p * k)) & 14'((1 << k) - 1);
  end

  logic [3:0] index_1, index_2, index_3;
  logic [7:0] levels_1, levels_2, unused_levels_3;
  logic [6:0] center_1, center_2, center_3;
  logic [21:0] inverse_1, unused_inverse_2, unused_inverse_3;
  logic [5:0] unused_bytes_1, unused_bytes_2, unused_bytes_3;
  qpack_width width_1 (
      .index(index_1),
      .bytes(unused_bytes_1),
      .levels(levels_1),
      .center(center_1),
      .inverse(inverse_1)
  );
  qpack_width width_2 (
      .index(index_2),
      .bytes(unused_bytes_2),
      .levels(levels_2),
      .center(center_2),
      .inverse(unused_inverse_2)
  );
  qpack_width width_3 (
      .index(index_3),
      .bytes(unused_bytes_3),
      .levels(unused_levels_3),
      .center(center_3),
      .inverse(unused_inverse_3)
  );
  logic unused;
  assign unused = ^{levels_1, center_1, center_2};

  // Halves and the mean travel beside the computation.
  logic [255:0] raw[0:Stages-1];
  logic is_raw[0:Stages-1];
  logic [36:0] steps[0:3], means[0:5];
  for (genvar k = 0; k < Stages; k++) begin : g_raw
    logic [255:0] raw_q;
    logic is_raw_q;
    always_ff @(posedge clk)
      if (en) begin
        raw_q <= (k == 0) ? s_bytes : raw[(k == 0) ? 0 : k-1];
        is_raw_q <= (k == 0) ? s_index == 4'd15 : is_raw[(k == 0) ? 0 : k-1];
      end
    assign raw[k] = raw_q;
    assign is_raw[k] = is_raw_q;
  end
  for (genvar k = 0; k < 6; k++) begin : g_mean
    logic [36:0] mean_q;
    always_ff @(posedge clk) if (en) mean_q <= (k == 0) ? s_mean : means[(k == 0) ? 0 : k-1];
    assign means[k] = mean_q;
  end
  for (genvar k = 0; k < 4; k++) begin : g_step
    logic [36:0] step_q;
    always_ff @(posedge clk) if (en) step_q <= (k == 0) ? s_step : steps[(k == 0) ? 0 : k-1];
    assign steps[k] = step_q;
  end

  logic [16*9-1:0] codes_3;
  for (genvar p = 0; p < 8; p++) begin : g_pair
    localparam int First = p % 4 + p / 4 * 8;
    logic [35:0] scaled;
    logic [13:0] quotient_2, pair_2, rest;
    assign scaled = {22'd0, pairs_1[p*14+:14]} * {14'd0, inverse_1};
    assign rest = pair_2 - 14'(quotient_2 * {6'd0, levels_2});
    always_ff @(posedge clk)
      if (en) begin
        quotient_2 <= {scaled[34:21]};
        pair_2 <= pairs_1[p*14+:14];
        codes_3[First*9+:9] <= rest[8:0];
        codes_3[(First+4)*9+:9] <= quotient_2[8:0];
      end
    logic unused_bits;
    assign unused_bits = ^{scaled[35], scaled[20:0], rest[13:9], quotient_2[13:9]};
  end

  for (genvar i = 0; i < 16; i++) begin : g_lane
    logic [36:0] open, code_4, product, sum;
    logic [15:0] rounded, as_stored, bfloat;
    logic [36:0] raw_open;
    from_int opening (
        .value(codes_3[i*9+:9] - {2'd0, center_3}),
        .open
    );
    always_ff @(posedge clk) if (en) code_4 <= open;
    fmul #(
        .MA(9)
    ) multiply (
        .clk,
        .en,
        .a(code_4),
        .b(steps[3]),
        .y(product)
    );
    fadd add (
        .clk,
        .en,
        .a(product),
        .b(means[5]),
        .y(sum)
    );
    to_16 rounding (
        .clk,
        .en,
        .bf16,
        .x(sum),
        .value(rounded)
    );
    from_f16 opening_raw (
        .half(raw[Stages-2][i*16+:16]),
        .open(raw_open)
    );
    to_bf16 widening (
        .clk,
        .en,
        .x(raw_open),
        .bfloat
    );
    // A conversion makes NaN quiet.
    assign as_stored = raw[Stages-1][i*16+:16];
    always_ff @(posedge clk)
      if (en) begin
        if (!is_raw[Stages-1]) m_data[i*16+:16] <= rounded;
        else if (as_stored[14:10] == 5'd31 && as_stored[9:0] != '0)
          m_data[i*16+:16] <= bf16 ? {as_stored[15], 9'h1ff, as_stored[8:3]} : as_stored | 16'h0200;
        else m_data[i*16+:16] <= bf16 ? bfloat : as_stored;
      end
  end

  always_ff @(posedge clk)
    if (en) begin
      pairs_1 <= pairs;
      index_1 <= s_index;
      index_2 <= index_1;
      index_3 <= index_2;
    end
endmodule

// Least and greatest rest of a token in each group, as halves rounded outwards (Oaken §4.2, eq. 2).
//
// Rounding keeps the order, so each lane rounds first and integers are compared.
//
// Interface: a stalling pipeline, which moves while `en`. 32 rests with groups in, the last beat of
// a token marked. Behind it, `done` is a pulse with the bounds of groups 0, 1 and 2, each the
// least and then the greatest. An empty group has zeros. `bad`: a value or bound is not finite.
// Latency 3 cycles, initiation interval 1.
module oaken_bounds (
    input  logic          clk,
    input  logic          rst,
    input  logic          en,
    input  logic          s_valid,
    input  logic          s_last,
    input  logic          s_bad,
    input  logic [63:0]   s_groups,
    input  logic [1183:0] s_rests,
    output logic          done,
    output logic [95:0]   bounds,
    output logic          bad
);
  localparam logic signed [15:0] Most = 16'sd32767;

  logic [32*16-1:0] downs, ups, downs_q, ups_q;
  logic [63:0] groups_q;
  logic a_valid, a_last, a_bad, b_valid, b_last, b_bad, any_bad;
  logic [2:0] infinite;

  for (genvar i = 0; i < 32; i++) begin : g_lane
    to_f16_bounds rounding (
        .x(s_rests[i*37+:37]),
        .down(downs[i*16+:16]),
        .up(ups[i*16+:16])
    );
  end

  for (genvar g = 0; g < 3; g++) begin : g_group
    for (genvar k = 0; k <= 5; k++) begin : g_row
      logic [(32>>k)*16-1:0] least, most;
      for (genvar i = 0; i < (32 >> k); i++) begin : g_pick
        if (k == 0) begin : g_in
          assign least[i*16+:16] = (groups_q[i*2+:2] == 2'(g)) ? downs_q[i*16+:16] : Most;
          assign most[i*16+:16] = (groups_q[i*2+:2] == 2'(g)) ? ups_q[i*16+:16] : -Most;
        end else begin : g_two
          logic signed [15:0] low_a, low_b, high_a, high_b;
          assign low_a = g_row[k-1].least[2*i*16+:16];
          assign low_b = g_row[k-1].least[(2*i+1)*16+:16];
          assign high_a = g_row[k-1].most[2*i*16+:16];
          assign high_b = g_row[k-1].most[(2*i+1)*16+:16];
          assign least[i*16+:16] = (low_a < low_b) ? low_a : low_b;
          assign most[i*16+:16] = (high_a > high_b) ? high_a : high_b;
        end
      end
    end

    logic signed [15:0] beat_least, beat_most, least, most, next_least, next_most;
    logic [15:0] least_half, most_half;
    assign next_least = (beat_least < least) ? beat_least : least;
    assign next_most = (beat_most > most) ? beat_most : most;
    // Integers back to halves.
    assign least_half = next_least[15] ? (16'h8000 | -next_least) : next_least;
    assign most_half = next_most[15] ? (16'h8000 | -next_most) : next_most;
    assign infinite[g] = next_least <= next_most && (next_least == -16'sd31744 || next_most == 16'sd31744);

    always_ff @(posedge clk) begin
      if (en) begin
        beat_least <= g_row[5].least;
        beat_most <= g_row[5].most;
        if (b_valid) begin
          least <= b_last ? Most : next_least;
          most <= b_last ? -Most : next_most;
          bounds[g*32+:32] <= (next_least > next_most) ? 32'd0 : {most_half, least_half};
        end
      end
      if (rst) begin
        least <= Most;
        most <= -Most;
      end
    end
  end

  always_ff @(posedge clk) begin
    if (en) begin
      downs_q <= downs;
      ups_q <= ups;
      groups_q <= s_groups;
      a_valid <= s_valid;
      a_last <= s_last;
      a_bad <= s_bad;
      b_valid <= a_valid;
      b_last <= a_last;
      b_bad <= a_bad;
      done <= b_valid && b_last;
      if (b_valid) begin
        any_bad <= !b_last && (any_bad || b_bad);
        bad <= any_bad || b_bad || |infinite;
      end
    end
    if (rst) begin
      a_valid <= 1'b0;
      b_valid <= 1'b0;
      done <= 1'b0;
      any_bad <= 1'b0;
    end
  end
endmodule

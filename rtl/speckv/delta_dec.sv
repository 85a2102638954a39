// Sums of differences along a row of channels, modulo 256: the inverse of delta_enc.sv.
//
// Interface: a stalling pipeline, which moves while `en`. Beats of 32 differences in, codes out.
// `dim` is 32 or more.
// Latency 2 cycles, initiation interval 1: only one addition of eight bits is in the loop.
module delta_dec #(
    parameter int U = 1
) (
    input  logic         clk,
    input  logic         rst,
    input  logic         en,
    input  logic [15:0]  dim,
    input  logic         s_valid,
    input  logic [255:0] s_codes,
    input  logic         s_last,
    input  logic [U-1:0] s_user,
    output logic         m_valid,
    output logic [255:0] m_codes,
    output logic         m_last,
    output logic [U-1:0] m_user
);
  logic has_start;
  logic [4:0] lane;

  row_start rows (
      .clk,
      .rst,
      .dim,
      .step(en && s_valid && !s_last),
      .restart(en && s_valid && s_last),
      .has_start,
      .lane
  );

  // Sums within the beat, which do not cross the start of a row. `cut` marks lanes behind it.
  for (genvar k = 0; k <= 5; k++) begin : g_row
    logic [255:0] sums;
    logic [31:0]  cut;
    for (genvar i = 0; i < 32; i++) begin : g_lane
      if (k == 0) begin : g_in
        assign sums[i*8+:8] = s_codes[i*8+:8];
        assign cut[i] = has_start && lane == 5'(i);
      end else if (i >= (1 << (k - 1))) begin : g_add
        assign sums[i*8+:8] = g_row[k-1].sums[i*8+:8]
            + (g_row[k-1].cut[i] ? 8'd0 : g_row[k-1].sums[(i-(1<<(k-1)))*8+:8]);
        assign cut[i] = g_row[k-1].cut[i] || g_row[k-1].cut[i-(1<<(k-1))];
      end else begin : g_pass
        assign sums[i*8+:8] = g_row[k-1].sums[i*8+:8];
        assign cut[i] = g_row[k-1].cut[i];
      end
    end
  end

  logic a_valid, a_last;
  logic [255:0] a_sums, codes;
  logic [31:0] a_cut;
  logic [U-1:0] a_user;
  logic [7:0] carry;

  for (genvar i = 0; i < 32; i++) begin : g_carry
    assign codes[i*8+:8] = a_sums[i*8+:8] + (a_cut[i] ? 8'd0 : carry);
  end

  always_ff @(posedge clk) begin
    if (en) begin
      a_valid <= s_valid;
      a_sums  <= g_row[5].sums;
      a_cut   <= g_row[5].cut;
      a_last  <= s_last;
      a_user  <= s_user;
      m_valid <= a_valid;
      m_codes <= codes;
      m_last  <= a_last;
      m_user  <= a_user;
      if (a_valid) carry <= codes[255:248];
    end
    if (rst) begin
      a_valid <= 1'b0;
      m_valid <= 1'b0;
    end
  end
endmodule

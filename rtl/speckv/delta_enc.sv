// Differences between adjacent channels, modulo 256 (SpecKV Algorithm 2, lines 9-14).
//
// Interface: a stalling pipeline, which moves while `en`. Beats of 32 codes in and out; lanes are
// in the order of the page, `[head][token][channel]`. `dim` is 32 or more.
// Latency 1 cycle, initiation interval 1.
module delta_enc (
    input  logic         clk,
    input  logic         rst,
    input  logic         en,
    input  logic [15:0]  dim,
    input  logic         s_valid,
    input  logic [255:0] s_codes,
    input  logic         s_last,
    output logic         m_valid,
    output logic [255:0] m_codes
);
  logic has_start;
  logic [4:0] lane;
  logic [7:0] carry;
  logic [255:0] changes;

  row_start rows (
      .clk,
      .rst,
      .dim,
      .step(en && s_valid && !s_last),
      .restart(en && s_valid && s_last),
      .has_start,
      .lane
  );

  for (genvar i = 0; i < 32; i++) begin : g_lane
    logic [7:0] left;
    if (i == 0) begin : g_carry
      assign left = carry;
    end else begin : g_next
      assign left = s_codes[(i-1)*8+:8];
    end
    assign changes[i*8+:8] = s_codes[i*8+:8] - ((has_start && lane == 5'(i)) ? 8'd0 : left);
  end

  always_ff @(posedge clk) begin
    if (en) begin
      m_valid <= s_valid;
      m_codes <= changes;
      if (s_valid) carry <= s_codes[255:248];
    end
    if (rst) m_valid <= 1'b0;
  end
endmodule

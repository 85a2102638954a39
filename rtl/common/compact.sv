// Zero-remove shifter: moves the kept words of a vector to its front, in order (Oaken §5.2).
//
// A word moves by the number of dropped words before it. Stage k moves words by 2^k if bit k of
// their distance is set. From the lowest bit up, no two words meet.
//
// Interface: a stalling pipeline, which moves while `en`. N words of W bits with a mask in; words
// and their number out. U bits travel beside them.
// Latency 7 cycles for 64 words, which is 1 + log2(N); initiation interval 1.
module compact #(
    parameter int N = 64,
    parameter int W = 8,
    parameter int U = 1
) (
    input  logic                 clk,
    input  logic                 rst,
    input  logic                 en,
    input  logic                 s_valid,
    input  logic [N*W-1:0]       s_data,
    input  logic [N-1:0]         s_keep,
    input  logic [U-1:0]         s_user,
    output logic                 m_valid,
    output logic [N*W-1:0]       m_data,
    output logic [$clog2(N):0]   m_count,
    output logic [U-1:0]         m_user
);
  localparam int L = $clog2(N);
  localparam int C = L + 1;

  logic [N*C-1:0] drops, dropped;
  logic [N*W-1:0] first_data;
  logic [N-1:0]   first_keep;
  logic [C-1:0]   first_drops;

  // Row k is the input of stage k; row L is the output.
  logic [N*W-1:0] data[0:L];
  logic [N*L-1:0] gap[0:L];
  logic [N-1:0]   keep[0:L];
  logic [C-1:0]   count[0:L];
  logic [U-1:0]   user[0:L+1];
  logic [L:0]     valid;

  for (genvar i = 0; i < N; i++) begin : g_drop
    assign drops[i*C+:C] = C'(!s_keep[i]);
  end

  prefix_sum #(
      .N(N),
      .W(C)
  ) ranks (
      .parts(drops),
      .sums (dropped)
  );

  always_ff @(posedge clk) begin
    if (en) begin
      valid <= {valid[L-1:0], s_valid};
      first_data <= s_data;
      first_keep <= s_keep;
      first_drops <= dropped[(N-1)*C+:C];
    end
    if (rst) valid <= '0;
  end

  for (genvar i = 0; i < N; i++) begin : g_first
    logic [L-1:0] distance;
    // The top bit is set only in the sum of all lanes.
    logic unused;
    assign unused = dropped[i*C+L];
    always_ff @(posedge clk) if (en) distance <= dropped[i*C+:L];
    assign gap[0][i*L+:L] = distance;
  end
  assign data[0]  = first_data;
  assign keep[0]  = first_keep;
  assign count[0] = C'(N) - first_drops;

  for (genvar k = 0; k < L; k++) begin : g_stage
    logic [N*W-1:0] moved_data;
    logic [N*L-1:0] moved_gap;
    logic [N-1:0]   moved_keep;
    for (genvar i = 0; i < N; i++) begin : g_word
      logic stays, comes;
      assign stays = keep[k][i] && !gap[k][i*L+k];
      if (i + (1 << k) < N) begin : g_inside
        assign comes = keep[k][i+(1<<k)] && gap[k][(i+(1<<k))*L+k];
        assign moved_data[i*W+:W] = comes ? data[k][(i+(1<<k))*W+:W] : data[k][i*W+:W];
        assign moved_gap[i*L+:L] = comes ? gap[k][(i+(1<<k))*L+:L] : gap[k][i*L+:L];
      end else begin : g_end
        assign comes = 1'b0;
        assign moved_data[i*W+:W] = data[k][i*W+:W];
        assign moved_gap[i*L+:L] = gap[k][i*L+:L];
      end
      assign moved_keep[i] = stays || comes;
    end
    logic [N*W-1:0] data_q;
    logic [N*L-1:0] gap_q;
    logic [N-1:0]   keep_q;
    logic [C-1:0]   count_q;
    always_ff @(posedge clk)
      if (en) begin
        data_q  <= moved_data;
        gap_q  <= moved_gap;
        keep_q  <= moved_keep;
        count_q <= count[k];
      end
    assign data[k+1]  = data_q;
    assign gap[k+1]  = gap_q;
    assign keep[k+1]  = keep_q;
    assign count[k+1] = count_q;
  end

  assign user[0] = s_user;
  for (genvar k = 0; k <= L; k++) begin : g_user
    logic [U-1:0] user_q;
    always_ff @(posedge clk) if (en) user_q <= user[k];
    assign user[k+1] = user_q;
  end

  assign m_valid = valid[L];
  assign m_data  = data[L];
  assign m_count = count[L];
  assign m_user  = user[L+1];
endmodule

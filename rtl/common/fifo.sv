// First-in first-out queue in registers or memory.
//
// Interface: a stream of W bits in and out, valid and ready; `level` words are held.
// Latency 1 cycle, initiation interval 1. DEPTH is a power of two.
module fifo #(
    parameter int W = 8,
    parameter int DEPTH = 4
) (
    input  logic                       clk,
    input  logic                       rst,
    input  logic                       s_valid,
    output logic                       s_ready,
    input  logic [W-1:0]               s_data,
    output logic                       m_valid,
    input  logic                       m_ready,
    output logic [W-1:0]               m_data,
    output logic [$clog2(DEPTH):0]     level
);
  localparam int A = $clog2(DEPTH);

  logic [W-1:0] words[0:DEPTH-1];
  logic [A:0] head, tail;

  assign level   = tail - head;
  assign m_valid = head != tail;
  assign s_ready = !level[A];
  assign m_data  = words[head[A-1:0]];

  always_ff @(posedge clk) begin
    if (s_valid && s_ready) begin
      words[tail[A-1:0]] <= s_data;
      tail <= tail + 1'b1;
    end
    if (m_valid && m_ready) head <= head + 1'b1;
    if (rst) begin
      head <= '0;
      tail <= '0;
    end
  end
endmodule

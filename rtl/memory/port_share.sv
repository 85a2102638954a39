// Three requesters behind one port of a memory: requests by turns, answers by their tags.
//
// Interface: a request of each requester in, with an address, whether it writes, a line and a tag;
// one request out, whose tag begins with the requester's number. Answers in, which also writes have;
// an answer of each requester out. A request waits in a register until it is taken.
// Latency 1 cycle for requests, 0 for answers; initiation interval 1.
module port_share (
    input  logic           clk,
    input  logic           rst,
    input  logic [2:0]     s_valid,
    output logic [2:0]     s_ready,
    input  logic [191:0]   s_address,
    input  logic [2:0]     s_write,
    input  logic [511:0]   s_data,
    input  logic [11:0]    s_tag,
    output logic           m_valid,
    input  logic           m_ready,
    output logic [63:0]    m_address,
    output logic           m_write,
    output logic [511:0]   m_data,
    output logic [5:0]     m_tag,
    input  logic           r_valid,
    output logic           r_ready,
    input  logic [5:0]     r_tag,
    output logic [2:0]     a_valid,
    input  logic [2:0]     a_ready,
    output logic [3:0]     a_tag
);
  logic [1:0] turn, pick, second, third;
  logic room;

  // The requester whose turn it is, or the next that asks.
  assign second = (turn == 2'd2) ? 2'd0 : turn + 2'd1;
  assign third = (second == 2'd2) ? 2'd0 : second + 2'd1;
  assign pick = s_valid[turn] ? turn : s_valid[second] ? second : third;
  assign room = !m_valid || m_ready;
  for (genvar k = 0; k < 3; k++) begin : g_ready
    assign s_ready[k] = room && pick == 2'(k);
    assign a_valid[k] = r_valid && r_tag[5:4] == 2'(k);
  end
  assign a_tag = r_tag[3:0];
  assign r_ready = (a_valid & a_ready) != 3'd0;

  always_ff @(posedge clk) begin
    if (room) begin
      m_valid <= s_valid != 3'd0;
      m_address <= s_address[pick*64+:64];
      m_write <= s_write[pick];
      m_data <= s_data;
      m_tag <= {pick, s_tag[pick*4+:4]};
      if (s_valid != 3'd0) turn <= (pick == 2'd2) ? 2'd0 : pick + 2'd1;
    end
    if (rst) begin
      m_valid <= 1'b0;
      turn <= '0;
    end
  end
endmodule

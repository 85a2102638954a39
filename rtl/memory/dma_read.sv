// Gather: reads the pieces of a list and gives their bytes as one stream (SpecKV §3.5.1, DMA with
// scatter-gather and 16 outstanding requests).
//
// Interface: pieces in, an address and a number of beats of 64 bytes each, 1 or more, the last of a
// page marked; `s_fault`: the address has no translation, so its beats are zeros, and `m_fault` is
// set in them. Reads leave with one of 16 tags; answers come in any order. Beats out in the order
// of the list, the last of a page marked.
// Latency 3 cycles and that of the memory. Initiation interval 1 if the memory answers within 14
// cycles; else 16 beats take its latency and 2 cycles.
module dma_read (
    input  logic         clk,
    input  logic         rst,
    input  logic         s_valid,
    output logic         s_ready,
    input  logic [63:0]  s_address,
    input  logic [15:0]  s_beats,
    input  logic         s_last,
    input  logic         s_fault,
    output logic         a_valid,
    input  logic         a_ready,
    output logic [63:0]  a_address,
    output logic [3:0]   a_tag,
    input  logic         r_valid,
    output logic         r_ready,
    input  logic [3:0]   r_tag,
    input  logic [511:0] r_data,
    output logic         m_valid,
    input  logic         m_ready,
    output logic [511:0] m_data,
    output logic         m_last,
    output logic         m_fault
);
  // The piece that is being requested.
  logic busy, last, fault;
  logic [63:0] address;
  logic [15:0] left;
  // Tags are places of a ring: `head` is asked next, `tail` leaves next.
  logic [4:0] head, tail, used;
  logic [511:0] answers[0:15];
  logic [15:0] arrived, is_last, is_fault;
  logic asks, gives, has_tag;

  assign used = head - tail;
  assign has_tag = used != 5'd16;
  assign a_valid = busy && !fault && has_tag;
  assign a_address = address;
  assign a_tag = head[3:0];
  assign asks = busy && has_tag && (fault || a_ready);
  assign s_ready = !busy || (asks && left == 16'd1);
  assign r_ready = 1'b1;
  assign gives = arrived[tail[3:0]] && (!m_valid || m_ready);

  always_ff @(posedge clk) begin
    if (m_valid && m_ready) m_valid <= 1'b0;
    if (asks) begin
      address <= address + 64'd64;
      left <= left - 16'd1;
      head <= head + 5'd1;
      is_last[head[3:0]] <= last && left == 16'd1;
      is_fault[head[3:0]] <= fault;
      if (fault) arrived[head[3:0]] <= 1'b1;
      if (left == 16'd1) busy <= 1'b0;
    end
    if (s_valid && s_ready) begin
      busy <= 1'b1;
      address <= s_address;
      left <= s_beats;
      last <= s_last;
      fault <= s_fault;
    end
    if (r_valid) begin
      answers[r_tag] <= r_data;
      arrived[r_tag] <= 1'b1;
    end
    if (gives) begin
      m_valid <= 1'b1;
      m_data <= is_fault[tail[3:0]] ? '0 : answers[tail[3:0]];
      m_fault <= is_fault[tail[3:0]];
      m_last <= is_last[tail[3:0]];
      arrived[tail[3:0]] <= 1'b0;
      tail <= tail + 5'd1;
    end
    if (rst) begin
      busy <= 1'b0;
      m_valid <= 1'b0;
      head <= '0;
      tail <= '0;
      arrived <= '0;
    end
  end
endmodule

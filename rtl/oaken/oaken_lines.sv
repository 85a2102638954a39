// Joins the bytes of each head to lines of 64 bytes, so that a head's tokens follow each other in
// memory without a gap (Oaken §5.2, read-write granularity). Unfinished lines stay here.
//
// Interface: chunks of up to 32 bytes of a head in; whole lines of a head out. `t_` reads the
// unfinished line of a head and its number of bytes. `clear` forgets all unfinished lines.
// Latency 1 cycle, initiation interval 1.
module oaken_lines #(
    parameter int HEADS = 8,
    localparam int H = $clog2(HEADS)
) (
    input  logic         clk,
    input  logic         rst,
    input  logic         clear,
    input  logic         s_valid,
    output logic         s_ready,
    input  logic [H-1:0] s_head,
    input  logic [255:0] s_data,
    input  logic [5:0]   s_count,
    output logic         m_valid,
    input  logic         m_ready,
    output logic [H-1:0] m_head,
    output logic [511:0] m_data,
    input  logic [H-1:0] t_head,
    output logic [511:0] t_data,
    output logic [5:0]   t_bytes
);
  logic [511:0] rests[0:HEADS-1];
  logic [HEADS*6-1:0] fills;
  logic [511:0] rest;
  logic [767:0] joined;
  logic [255:0] masked;
  logic [6:0] total;
  logic [5:0] fill;

  for (genvar i = 0; i < 32; i++) begin : g_mask
    assign masked[i*8+:8] = (6'(i) < s_count) ? s_data[i*8+:8] : 8'd0;
  end
  assign fill = fills[s_head*6+:6];
  // Bytes behind an unfinished line are zeros, so an empty one must not show what was there before.
  assign rest = (fill == 6'd0) ? '0 : rests[s_head];
  assign joined = {256'd0, rest} | ({512'd0, masked} << {fill, 3'd0});
  assign total = {1'b0, fill} + {1'b0, s_count};
  assign s_ready = !m_valid || m_ready;
  assign t_data = rests[t_head];
  assign t_bytes = fills[t_head*6+:6];

  always_ff @(posedge clk) begin
    if (m_valid && m_ready) m_valid <= 1'b0;
    if (s_valid && s_ready) begin
      m_valid <= total[6];
      m_head  <= s_head;
      m_data  <= joined[511:0];
      rests[s_head] <= total[6] ? {256'd0, joined[767:512]} : joined[511:0];
      fills[s_head*6+:6] <= total[5:0];
    end
    if (clear || rst) fills <= '0;
    if (rst) m_valid <= 1'b0;
  end
endmodule

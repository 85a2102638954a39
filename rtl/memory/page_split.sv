// Splits a piece of a list at the ends of pages of 4 KiB, because neighbours of a virtual page lie
// anywhere.
//
// Interface: a virtual address, which is a multiple of 64, and a number of beats of 64 bytes, 1 or
// more, in; parts of 1 to 64 beats out. The last part of a list's last piece is marked.
// Latency 1 cycle, initiation interval 1 for each part.
module page_split (
    input  logic        clk,
    input  logic        rst,
    input  logic        s_valid,
    output logic        s_ready,
    input  logic [38:0] s_address,
    input  logic [15:0] s_beats,
    input  logic        s_last,
    output logic        m_valid,
    input  logic        m_ready,
    output logic [38:0] m_address,
    output logic [6:0]  m_beats,
    output logic        m_last
);
  logic [15:0] left, room;
  logic last, is_end;

  assign room = 16'd64 - {10'd0, m_address[11:6]};
  assign is_end = left <= room;
  assign m_beats = is_end ? left[6:0] : room[6:0];
  assign m_last = last && is_end;
  assign s_ready = !m_valid || (m_ready && is_end);

  always_ff @(posedge clk) begin
    if (m_valid && m_ready) begin
      m_valid <= !is_end;
      m_address <= m_address + {26'd0, m_beats, 6'd0};
      left <= left - {9'd0, m_beats};
    end
    if (s_valid && s_ready) begin
      m_valid <= 1'b1;
      m_address <= s_address;
      left <= s_beats;
      last <= s_last;
    end
    if (rst) m_valid <= 1'b0;
  end
endmodule

// Store-and-forward buffer: a page leaves after a tag was committed for it.
//
// SpecKV §3.5.2 needs the maximum of a page before its first code, so a page is stored first.
//
// Interface: beats of W bits with `last` in; tags of T bits in, one for each page and in order;
// beats out, with the tag of their page and marks of the first and the last beat.
// Latency 2 cycles from commit, initiation interval 1. A page has at most DEPTH beats, or the
// buffer never takes its last beat. With two pages of room, pages follow without a gap.
module page_fifo #(
    parameter int W = 512,
    parameter int DEPTH = 1024,
    parameter int T = 8
) (
    input  logic         clk,
    input  logic         rst,
    input  logic         s_valid,
    output logic         s_ready,
    input  logic [W-1:0] s_data,
    input  logic         s_last,
    input  logic         c_valid,
    output logic         c_ready,
    input  logic [T-1:0] c_tag,
    output logic         m_valid,
    input  logic         m_ready,
    output logic [W-1:0] m_data,
    output logic         m_first,
    output logic         m_last,
    output logic [T-1:0] m_tag
);
  localparam int A = $clog2(DEPTH);

  logic [W:0] beats[0:DEPTH-1];
  logic [A:0] head, tail;
  logic [W:0] read;
  logic ends, more, fetch, fresh, tag_valid;
  logic [2:0] tags;

  // A page ends when its last beat is taken; only then its tag leaves.
  assign ends    = m_valid && m_ready && m_last;
  assign more    = tag_valid && (tags > 3'd1 || !(m_valid && m_last));
  assign fetch   = (!m_valid || m_ready) && more;
  assign s_ready = (tail - head) != (A + 1)'(DEPTH);
  assign {m_last, m_data} = read;

  always_ff @(posedge clk) begin
    if (s_valid && s_ready) begin
      beats[tail[A-1:0]] <= {s_last, s_data};
      tail <= tail + 1'b1;
    end
    if (fetch) begin
      read <= beats[head[A-1:0]];
      head <= head + 1'b1;
      // The beat fetched before stays in `read` after it was taken.
      m_first <= fresh || m_last;
      fresh <= 1'b0;
    end
    if (!m_valid || m_ready) m_valid <= more;
    if (rst) begin
      head <= '0;
      tail <= '0;
      m_valid <= 1'b0;
      fresh <= 1'b1;
    end
  end

  fifo #(
      .W(T),
      .DEPTH(4)
  ) queue (
      .clk,
      .rst,
      .s_valid(c_valid),
      .s_ready(c_ready),
      .s_data(c_tag),
      .m_valid(tag_valid),
      .m_ready(ends),
      .m_data(m_tag),
      .level(tags)
  );
endmodule

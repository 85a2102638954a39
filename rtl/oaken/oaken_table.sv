// A management table (Oaken §5.2, Figure 10): the physical pages and the transfer size of each head.
//
// A line goes behind the head's last one. Where a page is full, the head gets the next free page. A
// read is a burst for each page.
//
// Interface: lines of a head in, with free pages of 4 KiB from `f_`; writes with addresses out. `q_`
// asks for a head's lines; its bursts follow, an address and 0 to 64 lines, the last marked: a head
// without a whole line has one burst of none. A head has at most PAGES pages; `full` stays once a
// line was lost. `clear` forgets all heads.
// Latency 1 cycle for writes and for each burst, initiation interval 1.
module oaken_table #(
    parameter int HEADS = 8,
    parameter int PAGES = 4,
    localparam int H = $clog2(HEADS),
    localparam int P = $clog2(PAGES)
) (
    input  logic         clk,
    input  logic         rst,
    input  logic         clear,
    input  logic         f_valid,
    output logic         f_ready,
    input  logic [51:0]  f_page,
    input  logic         s_valid,
    output logic         s_ready,
    input  logic [H-1:0] s_head,
    input  logic [511:0] s_data,
    output logic         m_valid,
    input  logic         m_ready,
    output logic [63:0]  m_address,
    output logic [511:0] m_data,
    output logic         full,
    input  logic         q_valid,
    output logic         q_ready,
    input  logic [H-1:0] q_head,
    output logic         p_valid,
    input  logic         p_ready,
    output logic [63:0]  p_address,
    output logic [6:0]   p_lines,
    output logic         p_last
);
  // Lines of each head: the page's place in its upper bits, one more bit for a head that is full.
  localparam int L = P + 7;
  logic [51:0] pages[0:HEADS*PAGES-1];
  logic [HEADS*L-1:0] lines;
  logic [L-1:0] line;
  logic is_new, is_over, goes;
  logic [51:0] page;

  assign line = lines[s_head*L+:L];
  assign is_over = line[L-1];
  assign is_new = line[5:0] == 6'd0 && !is_over;
  assign page = is_new ? f_page : pages[{s_head, line[L-2:6]}];
  assign s_ready = (!m_valid || m_ready) && (!is_new || f_valid);
  assign goes = s_valid && s_ready;
  assign f_ready = goes && is_new;

  always_ff @(posedge clk) begin
    if (m_valid && m_ready) m_valid <= 1'b0;
    if (goes) begin
      m_valid <= !is_over;
      m_address <= {page, line[5:0], 6'd0};
      m_data <= s_data;
      if (is_new) pages[{s_head, line[L-2:6]}] <= f_page;
      if (is_over) full <= 1'b1;
      else lines[s_head*L+:L] <= line + 1'b1;
    end
    if (clear || rst) begin
      lines <= '0;
      full <= 1'b0;
    end
    if (rst) m_valid <= 1'b0;
  end

  // Bursts of a head, page by page.
  logic busy;
  logic [H-1:0] head;
  logic [L-1:0] left;
  logic [P-1:0] at;
  assign q_ready = !busy;
  assign p_valid = busy;
  assign p_address = {pages[{head, at}], 12'd0};
  assign p_last = left <= L'(64);
  assign p_lines = p_last ? left[6:0] : 7'd64;
  always_ff @(posedge clk) begin
    if (q_valid && q_ready) begin
      busy <= 1'b1;
      head <= q_head;
      left <= lines[q_head*L+:L];
      at <= '0;
    end
    if (p_valid && p_ready) begin
      busy <= !p_last;
      left <= left - L'(64);
      at <= at + 1'b1;
    end
    if (rst) busy <= 1'b0;
  end
endmodule

// Reads what Oaken's memory management stored for each head, the heads one after the other (Oaken
// §5.2): the bursts of a head by DMA, then its unfinished line.
//
// All bursts of a head are queued at once, so the table is free for the other side while this one
// waits for its reader.
//
// Interface: `start` begins with head 0 of `heads`, while `busy` is 0. `q_` and `p_` are those of
// oaken_table.sv, `a_` and `r_` those of dma_read.sv. `t_` reads a head's unfinished line. Beats out,
// with a count of bytes, 0 in the last beat of a head without an unfinished line. The last beat of
// the last head is marked.
// Latency of each head 6 cycles and that of the memory; initiation interval 1 within a head.
module oaken_fetch #(
    parameter int HEADS = 8,
    parameter int PAGES = 4,
    localparam int H = $clog2(HEADS)
) (
    input  logic         clk,
    input  logic         rst,
    input  logic         start,
    output logic         busy,
    input  logic [H:0]   heads,
    output logic         q_valid,
    input  logic         q_ready,
    output logic [H-1:0] q_head,
    input  logic         p_valid,
    output logic         p_ready,
    input  logic [63:0]  p_address,
    input  logic [6:0]   p_lines,
    input  logic         p_last,
    output logic [H-1:0] t_head,
    input  logic [511:0] t_data,
    input  logic [5:0]   t_bytes,
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
    output logic [6:0]   m_count,
    output logic         m_last
);
  // Of a head: asks, queues its bursts, passes their beats, and ends with the unfinished line.
  logic asks, queues, passes, ends, has_lines, is_last_head;
  logic [H-1:0] head;
  logic b_valid, b_ready, b_last, d_valid, d_last;
  logic [63:0] b_address;
  logic [6:0] b_lines;
  logic [$clog2(PAGES):0] unused_level;
  logic unused_fault;
  logic [511:0] d_data;

  assign q_valid = asks;
  assign q_head = head;
  assign t_head = head;
  assign is_last_head = {1'b0, head} == heads - 1'b1;

  // A head without a whole line has one burst of none, which is not queued.
  logic queue_ready;
  assign p_ready = queues && queue_ready;
  fifo #(
      .W(72),
      .DEPTH(PAGES)
  ) bursts (
      .clk,
      .rst,
      .s_valid(p_valid && queues && p_lines != 7'd0),
      .s_ready(queue_ready),
      .s_data({p_last, p_lines, p_address}),
      .m_valid(b_valid),
      .m_ready(b_ready),
      .m_data({b_last, b_lines, b_address}),
      .level(unused_level)
  );
  dma_read gather (
      .clk,
      .rst,
      .s_valid(b_valid),
      .s_ready(b_ready),
      .s_address(b_address),
      .s_beats({9'd0, b_lines}),
      .s_last(b_last),
      .s_fault(1'b0),
      .a_valid,
      .a_ready,
      .a_address,
      .a_tag,
      .r_valid,
      .r_ready,
      .r_tag,
      .r_data,
      .m_valid(d_valid),
      .m_ready(m_ready && !ends),
      .m_data(d_data),
      .m_last(d_last),
      .m_fault(unused_fault)
  );

  assign m_valid = ends || d_valid;
  assign m_data  = ends ? t_data : d_data;
  assign m_count = ends ? {1'b0, t_bytes} : 7'd64;
  assign m_last  = ends && is_last_head;

  always_ff @(posedge clk) begin
    if (start) begin
      busy <= 1'b1;
      asks <= 1'b1;
      head <= '0;
    end
    if (asks && q_ready) begin
      asks <= 1'b0;
      queues <= 1'b1;
    end
    if (p_valid && p_ready) begin
      has_lines <= p_lines != 7'd0;
      if (p_last) begin
        queues <= 1'b0;
        passes <= 1'b1;
      end
    end
    if (passes && !has_lines) begin
      passes <= 1'b0;
      ends <= 1'b1;
    end
    // A burst's beats come cycles after it was queued.
    if (d_valid && m_ready && !ends && d_last) begin
      passes <= 1'b0;
      ends <= 1'b1;
    end
    if (ends && m_ready) begin
      ends <= 1'b0;
      has_lines <= 1'b0;
      head <= head + 1'b1;
      busy <= !is_last_head;
      asks <= !is_last_head;
    end
    if (rst) begin
      busy <= 1'b0;
      asks <= 1'b0;
      queues <= 1'b0;
      passes <= 1'b0;
      ends <= 1'b0;
      has_lines <= 1'b0;
    end
  end
endmodule

// Scatter: writes the pages of a stream to the pieces of their lists (SpecKV §3.5.1, DMA with
// scatter-gather and 16 outstanding requests).
//
// Interface: pieces in, an address and a number of beats of 64 bytes each, 1 or more, the last of a
// page's list marked; `p_fault`: the address has no translation. Beats with a count of bytes in, the
// last of a page marked; writes of whole lines out. At most 16 writes are without an answer; answers
// come in any order. A beat without bytes takes its place in the list, and is not written. For each
// page a record: its bytes, and `d_bad` if its list was too short or had a fault, so that it is not
// whole in memory. The record leaves when all writes were answered.
// Latency 1 cycle. Initiation interval 1 within a page if the memory answers within 16 cycles. A
// page's list may be longer than the page; the rest of the list is skipped. `a_tag` numbers the
// writes modulo 16.
module dma_write (
    input  logic         clk,
    input  logic         rst,
    input  logic         p_valid,
    output logic         p_ready,
    input  logic [63:0]  p_address,
    input  logic [15:0]  p_beats,
    input  logic         p_last,
    input  logic         p_fault,
    input  logic         s_valid,
    output logic         s_ready,
    input  logic [511:0] s_data,
    input  logic [6:0]   s_count,
    input  logic         s_last,
    output logic         a_valid,
    input  logic         a_ready,
    output logic [63:0]  a_address,
    output logic [511:0] a_data,
    output logic [3:0]   a_tag,
    input  logic         b_valid,
    output logic         b_ready,
    output logic         d_valid,
    input  logic         d_ready,
    output logic [31:0]  d_bytes,
    output logic         d_bad
);
  // A piece is open (`busy`), or the list ended before the page (`spills`), or the page before its
  // list (`skips`), or both ended and writes are under way (`closes`).
  logic busy, spills, skips, closes, bad, last, fault;
  logic moves, writes, piece_ends, takes_piece;
  logic [63:0] address;
  logic [15:0] left;
  logic [4:0] open;
  logic [31:0] bytes;

  // A write that waits in the output register is open already.
  assign s_ready = spills || (busy && (fault || ((!a_valid || a_ready) && open != 5'd16)));
  assign moves = s_valid && s_ready;
  assign writes = moves && busy && !fault && s_count != 7'd0;
  assign piece_ends = left == 16'd1;
  // The next piece is taken with the last beat of the one before, if the page goes on.
  assign p_ready = skips || (!busy && !spills && !closes && !d_valid)
      || (busy && moves && piece_ends && !last && !s_last);
  assign takes_piece = p_valid && p_ready;
  assign b_ready = 1'b1;

  always_ff @(posedge clk) begin
    if (a_valid && a_ready) a_valid <= 1'b0;
    if (writes) begin
      a_valid <= 1'b1;
      a_address <= address;
      a_data <= s_data;
      a_tag <= a_tag + 4'd1;
    end
    if (moves) begin
      bytes <= bytes + {25'd0, s_count};
      address <= address + 64'd64;
      left <= left - 16'd1;
      bad <= bad || (busy && fault) || (busy && piece_ends && last && !s_last);
      if (busy && (piece_ends || s_last)) busy <= 1'b0;
      if (busy && piece_ends && last && !s_last) spills <= 1'b1;
      if (s_last) begin
        spills <= 1'b0;
        skips  <= busy && !last;
        closes <= !busy || last;
      end
    end
    if (takes_piece && skips) begin
      skips  <= !p_last;
      closes <= p_last;
    end else if (takes_piece) begin
      busy <= 1'b1;
      address <= p_address;
      left <= p_beats;
      last <= p_last;
      fault <= p_fault;
    end
    open <= open + {4'd0, writes} - {4'd0, b_valid};
    if (d_valid && d_ready) d_valid <= 1'b0;
    if (closes && open == 5'd0) begin
      closes <= 1'b0;
      d_valid <= 1'b1;
      d_bytes <= bytes;
      d_bad <= bad;
      bytes <= '0;
      bad <= 1'b0;
    end
    if (rst) begin
      busy <= 1'b0;
      spills <= 1'b0;
      skips <= 1'b0;
      closes <= 1'b0;
      bad <= 1'b0;
      a_valid <= 1'b0;
      d_valid <= 1'b0;
      open <= '0;
      a_tag <= '0;
      bytes <= '0;
    end
  end
endmodule

// Scatter: writes a stream to the pieces of a list (SpecKV §3.5.1, DMA with scatter-gather and 16
// outstanding requests).
//
// Interface: pieces in, an address and a number of beats of 64 bytes each, 1 or more; beats in;
// writes out. At most 16 writes are without an answer; answers come in any order. `written` counts
// the answers, modulo 2^32.
// Latency 1 cycle. Initiation interval 1 if the memory answers within 16 cycles.
module dma_write (
    input  logic         clk,
    input  logic         rst,
    input  logic         p_valid,
    output logic         p_ready,
    input  logic [63:0]  p_address,
    input  logic [15:0]  p_beats,
    input  logic         s_valid,
    output logic         s_ready,
    input  logic [511:0] s_data,
    output logic         a_valid,
    input  logic         a_ready,
    output logic [63:0]  a_address,
    output logic [511:0] a_data,
    input  logic         b_valid,
    output logic         b_ready,
    output logic [31:0]  written
);
  logic busy, moves;
  logic [63:0] address;
  logic [15:0] left;
  logic [4:0] open;

  // A write that waits in the output register is open already.
  assign moves = busy && s_valid && (!a_valid || a_ready) && open != 5'd16;
  assign s_ready = busy && (!a_valid || a_ready) && open != 5'd16;
  assign p_ready = !busy || (moves && left == 16'd1);
  assign b_ready = 1'b1;

  always_ff @(posedge clk) begin
    if (a_valid && a_ready) a_valid <= 1'b0;
    if (moves) begin
      a_valid <= 1'b1;
      a_address <= address;
      a_data <= s_data;
      address <= address + 64'd64;
      left <= left - 16'd1;
      if (left == 16'd1) busy <= 1'b0;
    end
    if (p_valid && p_ready) begin
      busy <= 1'b1;
      address <= p_address;
      left <= p_beats;
    end
    open <= open + {4'd0, moves} - {4'd0, b_valid};
    if (b_valid) written <= written + 32'd1;
    if (rst) begin
      busy <= 1'b0;
      a_valid <= 1'b0;
      open <= '0;
      written <= '0;
    end
  end
endmodule

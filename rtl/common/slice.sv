// Register slice of a stream: cuts the combinational path of ready.
//
// Interface: a stream of W bits in and out, valid and ready.
// Latency 1 cycle, initiation interval 1. Holds two words.
module slice #(
    parameter int W = 8
) (
    input  logic         clk,
    input  logic         rst,
    input  logic         s_valid,
    output logic         s_ready,
    input  logic [W-1:0] s_data,
    output logic         m_valid,
    input  logic         m_ready,
    output logic [W-1:0] m_data
);
  logic         spare_valid;
  logic [W-1:0] spare;

  assign s_ready = !spare_valid;

  always_ff @(posedge clk) begin
    if (m_ready || !m_valid) begin
      m_valid <= spare_valid || s_valid;
      m_data  <= spare_valid ? spare : s_data;
      spare_valid <= 1'b0;
    end else if (s_valid && s_ready) begin
      spare_valid <= 1'b1;
      spare <= s_data;
    end
    if (rst) begin
      m_valid <= 1'b0;
      spare_valid <= 1'b0;
    end
  end
endmodule

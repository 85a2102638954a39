// Registers of the engine behind AXI4-Lite, 32 bits.
//
// | address | register | |
// |---|---|---|
// | 0x00 | id | 0x43454e4f |
// | 0x04 | dim | channels of a head, 32 or more |
// | 0x08 | values | values of a page that is decoded |
// | 0x0c | encoded | pages encoded, read only |
// | 0x10 | declined | of these, pages without payload, read only |
// | 0x14 | decoded | pages decoded, read only |
// | 0x18 | refused | of these, pages with an invalid payload, read only |
//
// Interface: AXI4-Lite; address and data of a write may come in any order. Reads of other addresses
// give 0, writes to them are ignored. Strobes are not used: a write has four bytes.
// Latency 1 cycle for reads and writes, initiation interval 2.
module axi_lite_regs (
    input  logic        clk,
    input  logic        rst,
    input  logic        aw_valid,
    output logic        aw_ready,
    input  logic [7:0]  aw_address,
    input  logic        w_valid,
    output logic        w_ready,
    input  logic [31:0] w_data,
    output logic        b_valid,
    input  logic        b_ready,
    input  logic        ar_valid,
    output logic        ar_ready,
    input  logic [7:0]  ar_address,
    output logic        r_valid,
    input  logic        r_ready,
    output logic [31:0] r_data,
    output logic [15:0] dim,
    output logic [31:0] values,
    input  logic        page_encoded,
    input  logic        page_declined,
    input  logic        page_decoded,
    input  logic        page_refused
);
  logic [31:0] encoded, declined, decoded, refused;
  logic writes;

  assign writes = aw_valid && w_valid && !b_valid;
  assign aw_ready = writes;
  assign w_ready = writes;
  assign ar_ready = !r_valid;

  always_ff @(posedge clk) begin
    if (b_valid && b_ready) b_valid <= 1'b0;
    if (writes) begin
      b_valid <= 1'b1;
      if (aw_address == 8'h04) dim <= w_data[15:0];
      if (aw_address == 8'h08) values <= w_data;
    end
    if (r_valid && r_ready) r_valid <= 1'b0;
    if (ar_valid && ar_ready) begin
      r_valid <= 1'b1;
      case (ar_address)
        8'h00: r_data <= 32'h43454e4f;
        8'h04: r_data <= {16'd0, dim};
        8'h08: r_data <= values;
        8'h0c: r_data <= encoded;
        8'h10: r_data <= declined;
        8'h14: r_data <= decoded;
        8'h18: r_data <= refused;
        default: r_data <= '0;
      endcase
    end
    encoded <= encoded + {31'd0, page_encoded};
    declined <= declined + {31'd0, page_declined};
    decoded <= decoded + {31'd0, page_decoded};
    refused <= refused + {31'd0, page_refused};
    if (rst) begin
      b_valid <= 1'b0;
      r_valid <= 1'b0;
      dim <= 16'd64;
      values <= 32'd1;
      encoded <= '0;
      declined <= '0;
      decoded <= '0;
      refused <= '0;
    end
  end
endmodule

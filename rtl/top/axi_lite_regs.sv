// Registers of the engine behind AXI4-Lite, 32 bits.
//
// | address | register | |
// |---|---|---|
// | 0x00 | id | 0x43454e4f |
// | 0x10 to 0x1c | header | bytes 0 to 15 of the frames of both directions: codec, shape, layer, profile |
// | 0x20 | encoded | pages encoded, read only |
// | 0x24 | declined | of these, pages without a frame, read only |
// | 0x28 | decoded | frames decoded, read only |
// | 0x2c | refused | of these, invalid frames, read only |
// | 0x30 | pair | index of a pair of channels, `[head][channel / 2]`, of QPack's table |
// | 0x34 to 0x48 | word | its means, inverse steps and steps, write only; the last write stores them |
// | 0x50, 0x54 | root | frame of the page table's first level, 32 and 20 bits |
// | 0x58 | alpha | α of eq. 5, in 1/256, 0 to 256 |
// | 0x5c | flush | a write forgets all translations |
// | 0x60 | misses | walks of the page table, read only |
// | 0x64 to 0x70 | weights | of the four engines at the memory, in 1/256, read only |
// | 0x80 to 0x8c | thresholds | Oaken's: the outer interval's ends, then the inner one's, as singles |
// | 0x90 | row | bits 7 to 0: beats of a token of a head; bits 14 to 8: heads; bit 15: bfloats |
// | 0x94 | clear | a write forgets Oaken's sequence |
// | 0x98 | tokens | of Oaken's sequence, read only; bit 31: data was lost |
// | 0x9c | rejected | tokens that Oaken declined, read only |
//
// Interface: AXI4-Lite; address and data of a write may come in any order. Reads of other addresses
// give 0, writes to them are ignored. Strobes are not used: a write has four bytes. The header and
// the table stay while pages are inside; the root, while frames are; row and thresholds, while tokens
// are stored.
// Latency 1 cycle for reads and writes, initiation interval 2.
module axi_lite_regs (
    input  logic         clk,
    input  logic         rst,
    input  logic         aw_valid,
    output logic         aw_ready,
    input  logic [7:0]   aw_address,
    input  logic         w_valid,
    output logic         w_ready,
    input  logic [31:0]  w_data,
    output logic         b_valid,
    input  logic         b_ready,
    input  logic         ar_valid,
    output logic         ar_ready,
    input  logic [7:0]   ar_address,
    output logic         r_valid,
    input  logic         r_ready,
    output logic [31:0]  r_data,
    output logic [127:0] header,
    output logic         table_write,
    output logic [15:0]  table_at,
    output logic [191:0] table_word,
    input  logic         page_encoded,
    input  logic         page_declined,
    input  logic         page_decoded,
    input  logic         page_refused,
    output logic [51:0]  root,
    output logic [8:0]   alpha,
    output logic         flush,
    input  logic [31:0]  misses,
    input  logic [67:0]  weights,
    output logic [127:0] thresholds,
    output logic [15:0]  row,
    output logic         clear,
    input  logic [31:0]  tokens,
    input  logic [31:0]  rejected
);
  logic [31:0] encoded, declined, decoded, refused;
  logic writes;

  assign writes = aw_valid && w_valid && !b_valid;
  assign aw_ready = writes;
  assign w_ready = writes;
  assign ar_ready = !r_valid;

  // Words of the header, of the thresholds, and of the table's word.
  for (genvar k = 0; k < 4; k++) begin : g_header
    always_ff @(posedge clk) begin
      if (writes && aw_address == 8'(16 + 4 * k)) header[k*32+:32] <= w_data;
      if (writes && aw_address == 8'(128 + 4 * k)) thresholds[k*32+:32] <= w_data;
      if (rst) header[k*32+:32] <= '0;
      if (rst) thresholds[k*32+:32] <= '0;
    end
  end
  for (genvar k = 0; k < 6; k++) begin : g_word
    always_ff @(posedge clk) if (writes && aw_address == 8'(52 + 4 * k)) table_word[k*32+:32] <= w_data;
  end

  always_ff @(posedge clk) begin
    if (b_valid && b_ready) b_valid <= 1'b0;
    if (writes) b_valid <= 1'b1;
    if (writes && aw_address == 8'h30) table_at <= w_data[15:0];
    table_write <= writes && aw_address == 8'h48;
    if (writes && aw_address == 8'h50) root[31:0] <= w_data;
    if (writes && aw_address == 8'h54) root[51:32] <= w_data[19:0];
    if (writes && aw_address == 8'h58) alpha <= (w_data > 32'd256) ? 9'd256 : w_data[8:0];
    flush <= writes && aw_address == 8'h5c;
    if (writes && aw_address == 8'h90) row <= w_data[15:0];
    clear <= writes && aw_address == 8'h94;
    if (r_valid && r_ready) r_valid <= 1'b0;
    if (ar_valid && ar_ready) begin
      r_valid <= 1'b1;
      case (ar_address)
        8'h00: r_data <= 32'h43454e4f;
        8'h10: r_data <= header[31:0];
        8'h14: r_data <= header[63:32];
        8'h18: r_data <= header[95:64];
        8'h1c: r_data <= header[127:96];
        8'h20: r_data <= encoded;
        8'h24: r_data <= declined;
        8'h28: r_data <= decoded;
        8'h2c: r_data <= refused;
        8'h30: r_data <= {16'd0, table_at};
        8'h50: r_data <= root[31:0];
        8'h54: r_data <= {12'd0, root[51:32]};
        8'h58: r_data <= {23'd0, alpha};
        8'h60: r_data <= misses;
        8'h64: r_data <= {15'd0, weights[16:0]};
        8'h68: r_data <= {15'd0, weights[33:17]};
        8'h6c: r_data <= {15'd0, weights[50:34]};
        8'h70: r_data <= {15'd0, weights[67:51]};
        8'h80: r_data <= thresholds[31:0];
        8'h84: r_data <= thresholds[63:32];
        8'h88: r_data <= thresholds[95:64];
        8'h8c: r_data <= thresholds[127:96];
        8'h90: r_data <= {16'd0, row};
        8'h98: r_data <= tokens;
        8'h9c: r_data <= rejected;
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
      table_write <= 1'b0;
      table_at <= '0;
      root <= '0;
      alpha <= 9'd128;
      flush <= 1'b0;
      row <= '0;
      clear <= 1'b0;
      encoded <= '0;
      declined <= '0;
      decoded <= '0;
      refused <= '0;
    end
  end
endmodule

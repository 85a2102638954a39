// The cache engine (SpecKV §3.5.1): pages to frames and back on 512-bit AXI-Stream, by SpecKV or by
// QPack, with registers on AXI4-Lite (axi_lite_regs.sv).
//
// Interface: `c_` a page in and `z_` its frame out; `x_` a frame in and `y_` its page out. Each ends
// with tlast; tkeep has its ones in the lowest bytes. tuser in the last beat: the page has no frame,
// or the frame is invalid. Registers from `root` on are of the units behind the engine
// (cache_system.sv).
// Latency and initiation interval: those of page_encoder.sv and page_decoder.sv, and 1 cycle for
// each register slice at the inputs.
module cache_engine #(
    parameter int DEPTH = 1024
) (
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
    output logic [51:0]  root,
    output logic [8:0]   alpha,
    output logic         flush,
    input  logic [31:0]  misses,
    input  logic [67:0]  weights,
    output logic [127:0] thresholds,
    output logic [15:0]  row,
    output logic         clear,
    input  logic [31:0]  tokens,
    input  logic [31:0]  rejected,
    input  logic         c_valid,
    output logic         c_ready,
    input  logic [511:0] c_tdata,
    input  logic [63:0]  c_tkeep,
    input  logic         c_tlast,
    output logic         z_valid,
    input  logic         z_ready,
    output logic [511:0] z_tdata,
    output logic [63:0]  z_tkeep,
    output logic         z_tlast,
    output logic         z_tuser,
    input  logic         x_valid,
    output logic         x_ready,
    input  logic [511:0] x_tdata,
    input  logic [63:0]  x_tkeep,
    input  logic         x_tlast,
    output logic         y_valid,
    input  logic         y_ready,
    output logic [511:0] y_tdata,
    output logic [63:0]  y_tkeep,
    output logic         y_tlast,
    output logic         y_tuser
);
  logic z_ends, y_ends, table_write;
  logic [127:0] header;
  logic [15:0] table_at, e_at, d_at;
  logic [191:0] table_word, e_word, d_word;

  assign z_ends = z_valid && z_ready && z_tlast;
  assign y_ends = y_valid && y_ready && y_tlast;

  axi_lite_regs registers (
      .clk,
      .rst,
      .aw_valid,
      .aw_ready,
      .aw_address,
      .w_valid,
      .w_ready,
      .w_data,
      .b_valid,
      .b_ready,
      .ar_valid,
      .ar_ready,
      .ar_address,
      .r_valid,
      .r_ready,
      .r_data,
      .header,
      .table_write,
      .table_at,
      .table_word,
      .page_encoded(z_ends),
      .page_declined(z_ends && z_tuser),
      .page_decoded(y_ends),
      .page_refused(y_ends && y_tuser),
      .root,
      .alpha,
      .flush,
      .misses,
      .weights,
      .thresholds,
      .row,
      .clear,
      .tokens,
      .rejected
  );
  qpack_table statistics (
      .clk,
      .write(table_write),
      .at(table_at),
      .word(table_word),
      .a_at(e_at),
      .a_word(e_word),
      .b_at(d_at),
      .b_word(d_word)
  );

  // Slices cut the paths of ready; counts are taken before them.
  logic [6:0] c_bytes, x_bytes, e_bytes, d_bytes, z_bytes;
  logic [5:0] y_halves;
  logic e_valid, e_ready, e_last, d_valid, d_ready, d_last;
  logic [511:0] e_data, d_data;

  keep_count c_keep (
      .keep (c_tkeep),
      .count(c_bytes)
  );
  keep_count x_keep (
      .keep (x_tkeep),
      .count(x_bytes)
  );
  slice #(
      .W(520)
  ) c_slice (
      .clk,
      .rst,
      .s_valid(c_valid),
      .s_ready(c_ready),
      .s_data ({c_tlast, c_bytes, c_tdata}),
      .m_valid(e_valid),
      .m_ready(e_ready),
      .m_data ({e_last, e_bytes, e_data})
  );
  slice #(
      .W(520)
  ) x_slice (
      .clk,
      .rst,
      .s_valid(x_valid),
      .s_ready(x_ready),
      .s_data ({x_tlast, x_bytes, x_tdata}),
      .m_valid(d_valid),
      .m_ready(d_ready),
      .m_data ({d_last, d_bytes, d_data})
  );

  page_encoder #(
      .DEPTH(DEPTH)
  ) encoder (
      .clk,
      .rst,
      .header,
      .t_at(e_at),
      .t_word(e_word),
      .s_valid(e_valid),
      .s_ready(e_ready),
      .s_data(e_data),
      .s_bytes(e_bytes),
      .s_last(e_last),
      .m_valid(z_valid),
      .m_ready(z_ready),
      .m_data(z_tdata),
      .m_count(z_bytes),
      .m_last(z_tlast),
      .m_bad(z_tuser)
  );
  page_decoder decoder (
      .clk,
      .rst,
      .header,
      .t_at(d_at),
      .t_word(d_word),
      .s_valid(d_valid),
      .s_ready(d_ready),
      .s_data(d_data),
      .s_count(d_bytes),
      .s_last(d_last),
      .m_valid(y_valid),
      .m_ready(y_ready),
      .m_data(y_tdata),
      .m_count(y_halves),
      .m_last(y_tlast),
      .m_bad(y_tuser)
  );
  for (genvar i = 0; i < 64; i++) begin : g_keep
    assign z_tkeep[i] = 7'(i) < z_bytes;
    assign y_tkeep[i] = 6'(i / 2) < y_halves;
  end
endmodule

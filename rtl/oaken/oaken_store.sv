// Oaken's way into memory (Oaken §5.2, Figures 9a and 10): the quantization engine, and a memory
// management unit with a table for dense and one for sparse data. Tokens of a head follow each
// other in the head's own pages, so that a later read of all tokens is a few bursts.
//
// Interface: tokens in as for oaken_encode.sv; `row_beats` are the beats of a token of a head. Writes
// of lines out; free pages of 4 KiB come from `f_`. `q_` asks for the bursts of a head, dense or
// sparse (oaken_table.sv); `t_` reads the unfinished lines of two heads, of the first the dense one
// and of the second the sparse one. `n_` reads the number of outliers of a block of 64 channels,
// `b_` the bounds of a token. `idle`: no token is inside, and all lines have left. A token with values
// that are not finite is not stored, and counted in `declined`. `full` stays once data was lost, for
// want of room in a table.
// `clear` starts a new sequence, when no token is inside.
// Latency: those of oaken_encode.sv, oaken_lines.sv and oaken_table.sv, and a cycle more while the other
// side writes. Initiation interval 1.
module oaken_store #(
    parameter int DEPTH = 128,
    parameter int HEADS = 8,
    parameter int TOKENS = 64,
    parameter int BLOCKS = 4,
    parameter int PAGES = 4,
    localparam int H = $clog2(HEADS),
    localparam int N = $clog2(TOKENS),
    localparam int B = $clog2(BLOCKS)
) (
    input  logic           clk,
    input  logic           rst,
    input  logic           clear,
    input  logic           bf16,
    input  logic [127:0]   thresholds,
    input  logic [7:0]     row_beats,
    input  logic           s_valid,
    output logic           s_ready,
    input  logic [511:0]   s_data,
    input  logic           s_last,
    input  logic           f_valid,
    output logic           f_ready,
    input  logic [51:0]    f_page,
    output logic           m_valid,
    input  logic           m_ready,
    output logic [63:0]    m_address,
    output logic [511:0]   m_data,
    input  logic           q_valid,
    output logic           q_ready,
    input  logic           q_sparse,
    input  logic [H-1:0]   q_head,
    output logic           p_valid,
    input  logic           p_ready,
    output logic [63:0]    p_address,
    output logic [6:0]     p_lines,
    output logic           p_last,
    output logic           p_sparse,
    input  logic [2*H-1:0] t_head,
    output logic [1023:0]  t_data,
    output logic [11:0]    t_bytes,
    input  logic [H+N+B-1:0] n_at,
    output logic [6:0]     n_outliers,
    input  logic [N-1:0]   b_at,
    output logic [95:0]    b_bounds,
    output logic [N:0]     tokens,
    output logic [31:0]    declined,
    output logic           full,
    output logic           idle
);
  logic e_valid, e_ready, e_first, e_last, e_bad;
  logic [127:0] e_dense;
  logic [255:0] e_entries;
  logic [5:0] e_outliers;
  logic [95:0] e_bounds;
  oaken_encode #(
      .DEPTH(DEPTH)
  ) quantize (
      .clk,
      .rst,
      .bf16,
      .thresholds,
      .s_valid,
      .s_ready,
      .s_data,
      .s_last,
      .m_valid(e_valid),
      .m_ready(e_ready),
      .m_dense(e_dense),
      .m_entries(e_entries),
      .m_outliers(e_outliers),
      .m_bounds(e_bounds),
      .m_first(e_first),
      .m_last(e_last),
      .m_bad(e_bad)
  );

  // The place of a beat: its head, and its half of a block.
  logic fires, keeps, has_room, lost;
  logic [1:0] lines_ready;
  logic [H-1:0] head;
  logic [7:0] beat;
  logic [5:0] first_half;
  assign e_ready = &lines_ready;
  assign fires = e_valid && e_ready;
  assign has_room = tokens < (N + 1)'(TOKENS);
  assign keeps = !e_bad && has_room;

  logic [6:0] outliers[0:HEADS*TOKENS*BLOCKS-1];
  logic [95:0] bounds[0:TOKENS-1];
  assign n_outliers = outliers[n_at];
  assign b_bounds = bounds[b_at];
  always_ff @(posedge clk) begin
    if (fires) begin
      beat <= (beat == row_beats - 8'd1 || e_last) ? '0 : beat + 8'd1;
      if (beat == row_beats - 8'd1) head <= head + 1'b1;
      first_half <= e_outliers;
      if (e_first && keeps) bounds[tokens[N-1:0]] <= e_bounds;
      if (beat[0] && keeps)
        outliers[{head, tokens[N-1:0], beat[B:1]}] <= {1'b0, first_half} + {1'b0, e_outliers};
      if (e_last) begin
        head <= '0;
        if (keeps) tokens <= tokens + 1'b1;
        if (e_bad) declined <= declined + 32'd1;
        if (!e_bad && !has_room) lost <= 1'b1;
      end
    end
    if (clear || rst) begin
      beat <= '0;
      head <= '0;
      tokens <= '0;
      lost <= 1'b0;
    end
    if (rst) declined <= '0;
  end

  // Side 0 is dense, side 1 sparse. Each has its lines and its table; free pages and writes are
  // shared, and the dense side goes first.
  logic [1:0] free_ready, write_valid, write_ready, over, ask_ready, burst_valid, burst_last;
  logic [127:0] write_address, burst_address;
  logic [1023:0] write_data;
  logic [13:0] burst_lines;
  logic [1:0] moving;
  for (genvar k = 0; k < 2; k++) begin : g_side
    logic line_valid, line_ready;
    logic [H-1:0] line_head;
    logic [511:0] line;
    oaken_lines #(
        .HEADS(HEADS)
    ) lines (
        .clk,
        .rst,
        .clear,
        .s_valid(fires && keeps),
        .s_ready(lines_ready[k]),
        .s_head(head),
        .s_data((k == 0) ? {128'd0, e_dense} : e_entries),
        .s_count((k == 0) ? 6'd16 : e_outliers),
        .m_valid(line_valid),
        .m_ready(line_ready),
        .m_head(line_head),
        .m_data(line),
        .t_head(t_head[k*H+:H]),
        .t_data(t_data[k*512+:512]),
        .t_bytes(t_bytes[k*6+:6])
    );
    assign moving[k] = line_valid || write_valid[k];
    oaken_table #(
        .HEADS(HEADS),
        .PAGES(PAGES)
    ) management (
        .clk,
        .rst,
        .clear,
        // The sparse side gets a page only if the dense side does not take it.
        .f_valid(f_valid && (k == 0 || !free_ready[0])),
        .f_ready(free_ready[k]),
        .f_page,
        .s_valid(line_valid),
        .s_ready(line_ready),
        .s_head(line_head),
        .s_data(line),
        .m_valid(write_valid[k]),
        .m_ready(write_ready[k]),
        .m_address(write_address[k*64+:64]),
        .m_data(write_data[k*512+:512]),
        .full(over[k]),
        .q_valid(q_valid && q_ready && q_sparse == 1'(k)),
        .q_ready(ask_ready[k]),
        .q_head,
        .p_valid(burst_valid[k]),
        .p_ready,
        .p_address(burst_address[k*64+:64]),
        .p_lines(burst_lines[k*7+:7]),
        .p_last(burst_last[k])
    );
  end
  assign f_ready = |free_ready;
  assign full = lost || over != 2'd0;

  // A write stays chosen until it is taken.
  logic w_side;
  assign m_valid = write_valid[w_side];
  assign m_address = write_address[w_side*64+:64];
  assign m_data = write_data[w_side*512+:512];
  assign write_ready = {m_ready && w_side, m_ready && !w_side};
  always_ff @(posedge clk) begin
    if (!m_valid || m_ready) w_side <= !w_side;
    if (rst) w_side <= 1'b0;
  end

  // One head's bursts at a time.
  assign q_ready = &ask_ready;
  assign p_valid = |burst_valid;
  assign p_address = burst_valid[1] ? burst_address[127:64] : burst_address[63:0];
  assign p_lines = burst_valid[1] ? burst_lines[13:7] : burst_lines[6:0];
  assign p_last = burst_valid[1] ? burst_last[1] : burst_last[0];
  assign p_sparse = burst_valid[1];

  // Tokens of which a beat was taken and the last one did not leave.
  logic [7:0] open_tokens;
  logic goes_on;
  always_ff @(posedge clk) begin
    if (s_valid && s_ready) goes_on <= !s_last;
    open_tokens <= open_tokens + {7'd0, s_valid && s_ready && !goes_on} - {7'd0, fires && e_last};
    if (rst) begin
      goes_on <= 1'b0;
      open_tokens <= '0;
    end
  end
  assign idle = open_tokens == 8'd0 && moving == 2'd0;
endmodule

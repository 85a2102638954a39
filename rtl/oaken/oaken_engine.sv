// Oaken's engine as a whole (Oaken §5.2, Figures 9 and 10): tokens are quantized into pages of
// memory, and read back as a page.
//
// Interface: tokens in and free pages as for oaken_store.sv. `l_` asks for the whole sequence: it
// waits until the sequence has a token and all of it is in memory, and no token is taken until the
// page has left. Beats of the page out, `[head][token][channel]`, as for oaken_decode.sv. `heads`
// (1 to HEADS), `row_beats` (even, 2 to 2 · BLOCKS), `thresholds` and `bf16` stay while tokens are
// stored.
// `h_` are requests to a memory with tags, and `g_` its answers, which writes have too.
// Latency and initiation interval: those of oaken_store.sv for tokens; of oaken_decode.sv for a
// page, and for each head those of oaken_fetch.sv.
module oaken_engine #(
    parameter int DEPTH = 128,
    parameter int HEADS = 8,
    parameter int TOKENS = 64,
    parameter int BLOCKS = 4,
    parameter int PAGES = 4,
    localparam int H = $clog2(HEADS),
    localparam int N = $clog2(TOKENS),
    localparam int B = $clog2(BLOCKS)
) (
    input  logic         clk,
    input  logic         rst,
    input  logic         clear,
    input  logic         bf16,
    input  logic [127:0] thresholds,
    input  logic [7:0]   row_beats,
    input  logic [H:0]   heads,
    input  logic         s_valid,
    output logic         s_ready,
    input  logic [511:0] s_data,
    input  logic         s_last,
    input  logic         f_valid,
    output logic         f_ready,
    input  logic [51:0]  f_page,
    input  logic         l_valid,
    output logic         l_ready,
    output logic         m_valid,
    input  logic         m_ready,
    output logic [511:0] m_data,
    output logic         m_last,
    output logic         m_error,
    output logic         h_valid,
    input  logic         h_ready,
    output logic [63:0]  h_address,
    output logic         h_write,
    output logic [511:0] h_data,
    output logic [5:0]   h_tag,
    input  logic         g_valid,
    output logic         g_ready,
    input  logic [5:0]   g_tag,
    input  logic [511:0] g_data,
    output logic [N:0]   tokens,
    output logic [31:0]  declined,
    output logic         full
);
  // A page is being read. Tokens wait meanwhile.
  logic loading, start, room, idle, store_ready;
  assign s_ready = store_ready && !loading && !start;

  // Requesters of the memory: 0 dense reads, 1 sparse reads, 2 writes.
  logic [2:0] ask_valid, ask_ready, answer_valid, answer_ready;
  logic [191:0] ask_address;
  logic [11:0] ask_tag;
  logic [3:0] answer_tag;
  logic [511:0] line;

  logic q_valid, q_ready, q_sparse, p_valid, p_ready, p_last, p_sparse;
  logic [H-1:0] q_head;
  logic [63:0] p_address;
  logic [6:0] p_lines;
  logic [2*H-1:0] t_head;
  logic [1023:0] t_data;
  logic [11:0] t_bytes;
  logic [H+N+B-1:0] n_at;
  logic [6:0] n_outliers;
  logic [N-1:0] b_at;
  logic [95:0] b_bounds;
  oaken_store #(
      .DEPTH(DEPTH),
      .HEADS(HEADS),
      .TOKENS(TOKENS),
      .BLOCKS(BLOCKS),
      .PAGES(PAGES)
  ) store (
      .clk,
      .rst,
      .clear,
      .bf16,
      .thresholds,
      .row_beats,
      .s_valid(s_valid && !loading && !start),
      .s_ready(store_ready),
      .s_data,
      .s_last,
      .f_valid,
      .f_ready,
      .f_page,
      .m_valid(ask_valid[2]),
      .m_ready(ask_ready[2] && room),
      .m_address(ask_address[191:128]),
      .m_data(line),
      .q_valid,
      .q_ready,
      .q_sparse,
      .q_head,
      .p_valid,
      .p_ready,
      .p_address,
      .p_lines,
      .p_last,
      .p_sparse,
      .t_head,
      .t_data,
      .t_bytes,
      .n_at,
      .n_outliers,
      .b_at,
      .b_bounds,
      .tokens,
      .declined,
      .full,
      .idle
  );

  // Writes without an answer, at most 16.
  logic [4:0] open;
  logic writes;
  logic [3:0] write_tag;
  assign room = open != 5'd16;
  assign writes = ask_valid[2] && ask_ready[2] && room;
  assign ask_tag[11:8] = write_tag;
  assign answer_ready[2] = 1'b1;
  always_ff @(posedge clk) begin
    open <= open + {4'd0, writes} - {4'd0, answer_valid[2]};
    if (writes) write_tag <= write_tag + 4'd1;
    if (rst) begin
      open <= '0;
      write_tag <= '0;
    end
  end

  // Both sides read their heads; the dense one asks the tables first.
  logic [1:0] side_busy, side_asks, side_bursts, side_queues, side_valid, side_ready, side_last;
  logic [2*H-1:0] side_head;
  logic [1023:0] side_data;
  logic [13:0] side_count;
  assign q_valid = side_asks != 2'd0;
  assign q_sparse = !side_asks[0];
  assign q_head = side_asks[0] ? side_head[H-1:0] : side_head[2*H-1:H];
  assign side_bursts = {p_valid && p_sparse, p_valid && !p_sparse};
  assign p_ready = p_sparse ? side_queues[1] : side_queues[0];
  for (genvar k = 0; k < 2; k++) begin : g_side
    oaken_fetch #(
        .HEADS(HEADS),
        .PAGES(PAGES)
    ) fetch (
        .clk,
        .rst,
        .start,
        .busy(side_busy[k]),
        .heads,
        .q_valid(side_asks[k]),
        .q_ready(q_ready && q_sparse == 1'(k)),
        .q_head(side_head[k*H+:H]),
        .p_valid(side_bursts[k]),
        .p_ready(side_queues[k]),
        .p_address,
        .p_lines,
        .p_last,
        .t_head(t_head[k*H+:H]),
        .t_data(t_data[k*512+:512]),
        .t_bytes(t_bytes[k*6+:6]),
        .a_valid(ask_valid[k]),
        .a_ready(ask_ready[k]),
        .a_address(ask_address[k*64+:64]),
        .a_tag(ask_tag[k*4+:4]),
        .r_valid(answer_valid[k]),
        .r_ready(answer_ready[k]),
        .r_tag(answer_tag),
        .r_data(g_data),
        .m_valid(side_valid[k]),
        .m_ready(side_ready[k]),
        .m_data(side_data[k*512+:512]),
        .m_count(side_count[k*7+:7]),
        .m_last(side_last[k])
    );
  end
  port_share share (
      .clk,
      .rst,
      .s_valid({ask_valid[2] && room, ask_valid[1:0]}),
      .s_ready(ask_ready),
      .s_address(ask_address),
      .s_write(3'b100),
      .s_data(line),
      .s_tag(ask_tag),
      .m_valid(h_valid),
      .m_ready(h_ready),
      .m_address(h_address),
      .m_write(h_write),
      .m_data(h_data),
      .m_tag(h_tag),
      .r_valid(g_valid),
      .r_ready(g_ready),
      .r_tag(g_tag),
      .a_valid(answer_valid),
      .a_ready(answer_ready),
      .a_tag(answer_tag)
  );

  // A load begins when all tokens are in memory, and ends when its page has left and nothing of it is
  // under way.
  logic left;
  assign l_ready = idle && open == 5'd0 && !loading && tokens != '0;
  assign start = l_valid && l_ready;
  always_ff @(posedge clk) begin
    if (start) begin
      loading <= 1'b1;
      left <= 1'b0;
    end
    if (m_valid && m_ready && m_last) left <= 1'b1;
    if (loading && left && side_busy == 2'd0) loading <= 1'b0;
    if (rst) begin
      loading <= 1'b0;
      left <= 1'b0;
    end
  end

  // Bounds of all tokens.
  logic t_valid, t_ready, t_last;
  assign t_last = {1'b0, b_at} == tokens - 1'b1;
  always_ff @(posedge clk) begin
    if (start) t_valid <= 1'b1;
    if (t_valid && t_ready) begin
      b_at <= t_last ? '0 : b_at + 1'b1;
      t_valid <= !t_last;
    end
    if (rst) begin
      t_valid <= 1'b0;
      b_at <= '0;
    end
  end

  // A line has one or two blocks of dense codes. The number of outliers comes from its table.
  logic d_valid, d_ready, second, is_line_end, is_row_end, is_head_end;
  logic [255:0] dense;
  logic [7:0] row_blocks;
  logic [B-1:0] n_block;
  logic [N-1:0] n_token;
  logic [H-1:0] n_head;
  assign row_blocks = {1'b0, row_beats[7:1]};
  assign n_at = {n_head, n_token, n_block};
  assign d_valid = side_valid[0] && side_count[6:0] != 7'd0;
  assign dense = second ? side_data[511:256] : side_data[255:0];
  assign is_line_end = second || side_count[6:0] == 7'd32;
  assign side_ready[0] = side_count[6:0] == 7'd0 || (d_ready && is_line_end);
  assign is_row_end = {{(8 - B) {1'b0}}, n_block} == row_blocks - 8'd1;
  assign is_head_end = is_row_end && {1'b0, n_token} == tokens - 1'b1;
  always_ff @(posedge clk) begin
    if (d_valid && d_ready) begin
      second <= !is_line_end;
      n_block <= is_row_end ? '0 : n_block + 1'b1;
      if (is_row_end) n_token <= is_head_end ? '0 : n_token + 1'b1;
      if (is_head_end) n_head <= n_head + 1'b1;
    end
    if (start || rst) begin
      second <= 1'b0;
      n_block <= '0;
      n_token <= '0;
      n_head <= '0;
    end
  end
  oaken_decode #(
      .TOKENS(TOKENS)
  ) dequantize (
      .clk,
      .rst,
      .bf16,
      .thresholds,
      .row_blocks,
      .heads({{(7 - H) {1'b0}}, heads}),
      .t_valid,
      .t_ready,
      .t_bounds(b_bounds),
      .t_last,
      .d_valid,
      .d_ready,
      .d_dense(dense),
      .d_outliers({1'b0, n_outliers}),
      .e_valid(side_valid[1]),
      .e_ready(side_ready[1]),
      .e_data(side_data[1023:512]),
      .e_count(side_count[13:7]),
      .e_last(side_last[1]),
      .m_valid,
      .m_ready,
      .m_data,
      .m_last,
      .m_error
  );
  logic unused;
  assign unused = side_last[0] ^ row_beats[0];
endmodule

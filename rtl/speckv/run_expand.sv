// Puts codes at their places and zeros between: the inverse of the run-length stage.
//
// Interface: chunks of up to 32 bytes of a page in, the last marked, with the page's number of
// values and U bits that stay for a page. Beats of 32 codes with a count out. A page has exactly
// one last beat. `m_error` there: the payload has more or fewer codes than values, a run without a
// length, or `s_bad` was set.
// Latency 5 cycles. Initiation interval of a chunk: 1, or the number of beats that it completes.
// So a page takes at most its chunks and its beats together, and as many cycles as beats if no
// chunk has runs longer than its bytes.
module run_expand #(
    parameter int U = 1
) (
    input  logic         clk,
    input  logic         rst,
    input  logic         s_valid,
    output logic         s_ready,
    input  logic [255:0] s_bytes,
    input  logic [5:0]   s_count,
    input  logic         s_raw,
    input  logic         s_last,
    input  logic         s_bad,
    input  logic [31:0]  s_values,
    input  logic [U-1:0] s_user,
    output logic         m_valid,
    input  logic         m_ready,
    output logic [255:0] m_codes,
    output logic [5:0]   m_count,
    output logic         m_last,
    output logic         m_error,
    output logic [U-1:0] m_user
);
  logic en, valid, last, cut, bad;
  logic [255:0] bytes;
  logic [31:0] codes, values;
  logic [32*14-1:0] places;
  logic [4:0] start;
  logic [13:0] behind;
  logic [U-1:0] user;

  run_parse #(
      .U(33 + U)
  ) parse (
      .clk,
      .rst,
      .en,
      .s_valid,
      .s_bytes,
      .s_count,
      .s_raw,
      .s_last,
      .s_user({s_bad, s_values, s_user}),
      .m_valid(valid),
      .m_bytes(bytes),
      .m_codes(codes),
      .m_places(places),
      .m_start(start),
      .m_end(behind),
      .m_cut(cut),
      .m_last(last),
      .m_user({bad, values, user})
  );

  // Beats of the page that left, the beat of the chunk to be filled next, and its codes so far.
  logic [26:0] sent;
  logic [8:0] turn;
  logic [255:0] partial, this_beat, next_beat;
  // A page is full when all its codes arrived, and failed after an error; the rest is skipped.
  logic full, failed;
  logic [31:0] left, here, next_here;

  for (genvar j = 0; j < 32; j++) begin : g_lane
    logic [7:0] this_code, next_code;
    always_comb begin
      this_code = partial[j*8+:8];
      next_code = 8'd0;
      for (int i = 0; i < 32; i++) begin
        if (codes[i] && places[i*14+:5] == 5'(j)) begin
          if (places[i*14+5+:9] == turn) this_code = this_code | bytes[i*8+:8];
          if (places[i*14+5+:9] == turn + 9'd1) next_code = next_code | bytes[i*8+:8];
        end
      end
    end
    assign this_beat[j*8+:8] = this_code;
    assign next_beat[j*8+:8] = next_code;
  end

  // Codes that the page still needs, and codes from this beat's start to the chunk's end.
  assign left = values - {sent, 5'd0};
  assign here = {18'd0, behind} - {18'd0, turn, 5'd0};
  assign next_here = here - 32'd32;

  logic over, short, finishes, completes, ends_page, emits, done;
  assign over = full ? behind != {9'd0, start} : here > left;
  assign short = last && !full && here < left;
  assign finishes = here == left && left <= 32'd32;
  assign completes = !full && here >= 32'd32 && !finishes;
  assign ends_page = last && (bad || failed || over || short || full || finishes);
  assign emits = ends_page || (!bad && !failed && !over && completes);
  // The chunk is done unless another beat begins in it that must leave now.
  assign done = ends_page || !emits || (next_here < 32'd32 && next_here != left - 32'd32);
  assign en = !valid || ((!emits || !m_valid || m_ready) && done);
  assign s_ready = en;

  always_ff @(posedge clk) begin
    if (m_valid && m_ready) m_valid <= 1'b0;
    if (valid && (!emits || !m_valid || m_ready)) begin
      if (emits) begin
        m_valid <= 1'b1;
        m_codes <= full ? partial : this_beat;
        m_count <= (ends_page && left[31:5] == '0) ? {1'b0, left[4:0]} : 6'd32;
        m_last <= ends_page;
        m_error <= bad || failed || over || short || (ends_page && cut);
        m_user <= user;
      end
      turn <= done ? 9'd0 : turn + 9'd1;
      if (ends_page) begin
        sent <= '0;
        partial <= '0;
        full <= 1'b0;
        failed <= 1'b0;
      end else begin
        if (emits) sent <= sent + 27'd1;
        failed <= failed || bad || over;
        if (finishes) full <= 1'b1;
        if (emits) partial <= done ? next_beat : '0;
        else if (!full) partial <= this_beat;
      end
    end
    if (rst) begin
      m_valid <= 1'b0;
      sent <= '0;
      turn <= '0;
      partial <= '0;
      full <= 1'b0;
      failed <= 1'b0;
    end
  end
endmodule

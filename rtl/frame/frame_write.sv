// Puts the header before a payload: length and checksum are known only behind its last byte, so a
// payload is stored first (the frame of crates/codec/src/frame.rs).
//
// Interface: beats of 64 bytes with a count in, of which a page's last is marked; `s_header`, bytes
// 0 to 15 of the frame, is taken with it. Beats with a count out. A page with `s_bad`, or with a
// payload of `s_limit` bytes or more, or of more than DEPTH beats, has no frame: it leaves as one
// last beat without bytes, and with `m_bad`.
// Latency 10 cycles and one for each bit of the payload's length from the last beat to the first.
// Initiation interval 1 within a payload of at most DEPTH beats; a page takes its beats and one
// cycle, and at least one for each bit of its length and four more.
module frame_write #(
    parameter int DEPTH = 1024
) (
    input  logic         clk,
    input  logic         rst,
    input  logic [127:0] s_header,
    input  logic [31:0]  s_limit,
    input  logic         s_valid,
    output logic         s_ready,
    input  logic [511:0] s_data,
    input  logic [6:0]   s_count,
    input  logic         s_last,
    input  logic         s_bad,
    output logic         m_valid,
    input  logic         m_ready,
    output logic [511:0] m_data,
    output logic [6:0]   m_count,
    output logic         m_last,
    output logic         m_bad
);
  // One checksum at a time: a last beat waits until the page before has its own.
  logic busy, fire, ends, room, summed, advance, advanced, commit, bad;
  logic [23:0] length, length_so_far, whole_length;
  logic [127:0] title;
  logic [31:0] payload_state, title_state, behind_state, checksum;

  assign s_ready = room && !(s_last && busy);
  assign fire = s_valid && s_ready;
  assign ends = fire && s_last;
  assign whole_length = length_so_far + {17'd0, s_count};

  // A page that cannot have a frame is not stored, because it may not fit: its last beat must.
  localparam int A = $clog2(DEPTH);
  logic over, too_long;
  logic [A-1:0] stored;
  assign too_long = over || {8'd0, whole_length} >= s_limit || (stored == A'(DEPTH - 1) && !s_last);
  always_ff @(posedge clk) begin
    if (fire) begin
      over <= too_long && !s_last;
      stored <= s_last ? '0 : stored + A'(!too_long);
    end
    if (rst) begin
      over <= 1'b0;
      stored <= '0;
    end
  end

  crc32_stream payload (
      .clk,
      .rst,
      .seed(32'd0),
      .fire,
      .data(s_data),
      .count(s_count),
      .last(s_last),
      .done(summed),
      .state(payload_state)
  );
  // The state before a frame is all ones.
  crc32_beat #(
      .BYTES(20)
  ) title_bits (
      .data ({8'd0, length, title} ^ 160'hffffffff),
      .state(title_state)
  );
  crc32_zeros zeros (
      .clk,
      .rst,
      .start(advance),
      .state(title_state),
      .bytes(length),
      .done(advanced),
      .result(behind_state)
  );

  logic commit_ready, has_payload_state, has_title_state;
  assign commit = busy && has_payload_state && has_title_state;
  assign checksum = ~(behind_state ^ payload_state);

  always_ff @(posedge clk) begin
    if (fire) length_so_far <= s_last ? '0 : whole_length;
    advance <= ends;
    if (ends) begin
      busy <= 1'b1;
      // A page that does not become smaller is left to software (SpecKV §3.5.3).
      bad <= s_bad || too_long;
      title <= s_header;
      length <= whole_length;
    end
    if (summed) has_payload_state <= 1'b1;
    if (advanced) has_title_state <= 1'b1;
    if (commit && commit_ready) begin
      busy <= 1'b0;
      has_payload_state <= 1'b0;
      has_title_state <= 1'b0;
    end
    if (rst) begin
      busy <= 1'b0;
      advance <= 1'b0;
      length_so_far <= '0;
      has_payload_state <= 1'b0;
      has_title_state <= 1'b0;
    end
  end

  logic p_valid, p_ready, p_first, p_last, p_bad;
  logic [511:0] p_data;
  logic [6:0] p_count;
  logic [191:0] p_title;
  page_fifo #(
      .W(519),
      .DEPTH(DEPTH),
      .T(193)
  ) payloads (
      .clk,
      .rst,
      .s_valid(fire && (s_last || !too_long)),
      .s_ready(room),
      .s_data({s_count, s_data}),
      .s_last,
      .c_valid(commit),
      .c_ready(commit_ready),
      .c_tag({bad, checksum, 8'd0, length, title}),
      .m_valid(p_valid),
      .m_ready(p_ready),
      .m_data({p_count, p_data}),
      .m_first(p_first),
      .m_last(p_last),
      .m_tag({p_bad, p_title})
  );

  // The header, then the payload; of a bad page only its end.
  logic titled, is_title, pack_ready, pack_valid;
  assign is_title = p_first && !titled && !p_bad;
  assign pack_valid = p_valid && (!p_bad || p_last);
  assign p_ready = p_bad && !p_last ? 1'b1 : pack_ready && !is_title;
  always_ff @(posedge clk) begin
    if (p_valid && pack_ready) titled <= is_title || (titled && !p_last);
    if (rst) titled <= 1'b0;
  end

  byte_pack joiner (
      .clk,
      .rst,
      .s_valid(pack_valid),
      .s_ready(pack_ready),
      .s_data(is_title ? {320'd0, p_title} : p_data),
      .s_count(is_title ? 7'd24 : p_bad ? 7'd0 : p_count),
      .s_last(p_last && !is_title),
      .s_user(p_bad),
      .m_valid,
      .m_ready,
      .m_data,
      .m_count,
      .m_last,
      .m_user(m_bad)
  );
endmodule

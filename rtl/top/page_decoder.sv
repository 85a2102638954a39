// Frames to pages, by SpecKV or by QPack: header, codec, verdict (SpecKV §3.5.3;
// crates/codec/src/frame.rs).
//
// Interface: beats of 64 bytes of a frame with a count in, of which the last is marked. `header` is
// what bytes 0 to 15 of the frame must be; `t_` reads QPack's table. Beats of 32 halves or bfloats
// with a count out, in the codec's order (page_encoder.sv). `m_bad` in the last beat: the frame or its payload
// is invalid, and the page undefined.
// A raw frame of a page for SpecKV bypasses the decoders (SpecKV §3.5.3): it waits for the pages before
// it, and its beats pass as they are.
// Latency and initiation interval: those of frame_read.sv and of the codec's decoder together; of a
// raw frame 1 cycle more than frame_read.sv.
module page_decoder (
    input  logic         clk,
    input  logic         rst,
    input  logic [127:0] header,
    output logic [15:0]  t_at,
    input  logic [191:0] t_word,
    input  logic         s_valid,
    output logic         s_ready,
    input  logic [511:0] s_data,
    input  logic [6:0]   s_count,
    input  logic         s_last,
    output logic         m_valid,
    input  logic         m_ready,
    output logic [511:0] m_data,
    output logic [5:0]   m_count,
    output logic         m_last,
    output logic         m_bad
);
  logic is_qpack, bf16, supported;
  logic [15:0] dim, tokens, groups;
  logic [31:0] values, padded;
  page_shape shape (
      .clk,
      .header,
      .is_qpack,
      .bf16,
      .dim,
      .tokens,
      .groups,
      .values,
      .padded,
      .supported
  );

  logic f_valid, f_ready, f_last, f_raw, f_bad, room;
  logic [511:0] f_data;
  logic [6:0] f_count;
  frame_read framing (
      .clk,
      .rst,
      .header,
      .takes_raw(supported && !is_qpack),
      .s_valid,
      .s_ready,
      .s_data,
      .s_count,
      .s_last,
      .m_valid(f_valid),
      .m_ready(f_ready && room),
      .m_data(f_data),
      .m_count(f_count),
      .m_last(f_last),
      .m_raw(f_raw),
      .m_bad(f_bad)
  );

  // Frames in their order, raw or not: a raw one leaves when it is the first.
  logic queued, passes, first_is_raw, has_first, unused_queue_room;
  logic [4:0] unused_level;
  logic [31:0] passed;
  fifo #(
      .W(1),
      .DEPTH(16)
  ) order (
      .clk,
      .rst,
      .s_valid(f_valid && !queued),
      .s_ready(unused_queue_room),
      .s_data(f_raw),
      .m_valid(has_first),
      .m_ready(m_valid && m_ready && m_last),
      .m_data(first_is_raw),
      .level(unused_level)
  );
  assign passes = has_first && first_is_raw;
  always_ff @(posedge clk) begin
    if (f_valid) queued <= !(f_ready && room && f_last);
    if (passes && m_valid && m_ready) passed <= f_last ? '0 : passed + {25'd0, f_count};
    if (rst) begin
      queued <= 1'b0;
      passed <= '0;
    end
  end

  logic k_ready, k_valid, k_last, k_error, p_ready, p_valid, p_last, p_error;
  logic [511:0] k_data, p_data;
  logic [5:0] k_count;
  logic c_ready;
  // A frame of a kind that no codec here decodes ends without one, and gives one bad beat.
  logic none_ends;
  always_ff @(posedge clk) begin
    if (c_ready) none_ends <= 1'b0;
    if (!supported && f_valid && f_ready && room && f_last) none_ends <= 1'b1;
    if (rst) none_ends <= 1'b0;
  end
  assign f_ready = !supported ? !f_last || !none_ends
      : f_raw ? passes && m_ready : is_qpack ? p_ready : k_ready;
  speckv_decode speckv (
      .clk,
      .rst,
      .bf16,
      .dim,
      .values,
      .s_valid(f_valid && room && supported && !is_qpack && !f_raw),
      .s_ready(k_ready),
      .s_data(f_data),
      .s_count(f_count),
      .s_last(f_last),
      .m_valid(k_valid),
      .m_ready(c_ready),
      .m_data(k_data),
      .m_count(k_count),
      .m_last(k_last),
      .m_error(k_error)
  );

  logic word_taken, page_ends, unused_ends;
  logic [4:0] unused_here;
  qpack_walk walk (
      .clk,
      .rst,
      .dim,
      .tokens,
      .step(word_taken),
      .restart(page_ends),
      .index(t_at),
      .here(unused_here),
      .ends(unused_ends)
  );
  qpack_decode qpack (
      .clk,
      .rst,
      .bf16,
      .dim,
      .groups,
      .s_valid(f_valid && room && supported && is_qpack),
      .s_ready(p_ready),
      .s_data(f_data),
      .s_count(f_count),
      .s_last(f_last),
      .p_valid(1'b1),
      .p_ready(word_taken),
      .p_means(t_word[63:0]),
      .p_steps(t_word[191:128]),
      .page_ends,
      .m_valid(p_valid),
      .m_ready(c_ready),
      .m_data(p_data),
      .m_last(p_last),
      .m_error(p_error)
  );

  // A page's verdict comes with a raw frame's last beat, and behind that of others.
  logic c_valid, c_last, c_bad;
  assign m_data  = passes ? f_data : is_qpack ? p_data : k_data;
  assign m_count = passes ? f_count[6:1] : !supported ? 6'd0 : is_qpack ? 6'd32 : k_count;
  assign m_last  = passes ? f_last : c_last;
  assign m_valid = passes ? f_valid && room : c_valid;
  assign m_bad   = passes ? f_bad || (f_last && passed + {25'd0, f_count} != {values[30:0], 1'b0}) : c_bad;
  assign c_last  = !supported || (is_qpack ? p_last : k_last);
  verdict checking (
      .clk,
      .rst,
      .known(f_valid && f_ready && room && f_last && !f_raw),
      .bad(f_bad),
      .room,
      .s_valid(!supported ? none_ends : is_qpack ? p_valid : k_valid),
      .s_ready(c_ready),
      .s_last(c_last),
      .s_bad(!supported || ((is_qpack ? p_error : k_error) && c_last)),
      .m_valid(c_valid),
      .m_ready(m_ready && !passes),
      .m_bad(c_bad)
  );
  logic unused;
  assign unused = ^{padded, t_word[127:64]};
endmodule

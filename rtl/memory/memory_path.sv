// Between the engine's frames and sixteen memory channels (SpecKV §3.5.1): lists with virtual
// addresses, ATU, DMA in both directions, and channels shared by weights.
//
// Frames are written to the pieces of `p_` lists, and read from those of `q_` lists. Four engines
// share the channels: 0 reads, 1 writes, 2 walks the page table, and 3 is the port `h_` of another
// engine. Their weights follow eq. 5 from measured queues and service times, with `alpha`.
//
// Interface: `q_bytes`, in the last piece of a list, are the bytes of the frame's last beat, 1 to
// 64. `y_` are beats of frames read, with `y_fault` for parts without translation. `d_` are records
// of frames written (dma_write.sv). Requests of channels carry an address, a write's line, and a
// tag, which comes back with each answer, also of a write.
// Latency of a read 10 cycles and that of the memory, if the translation is kept; initiation
// interval 1 for each direction.
module memory_path (
    input  logic          clk,
    input  logic          rst,
    input  logic          flush,
    input  logic [51:0]   root,
    input  logic [8:0]    alpha,
    output logic [67:0]   weights,
    output logic [31:0]   misses,
    input  logic          p_valid,
    output logic          p_ready,
    input  logic [38:0]   p_address,
    input  logic [15:0]   p_beats,
    input  logic          p_last,
    input  logic          s_valid,
    output logic          s_ready,
    input  logic [511:0]  s_data,
    input  logic [6:0]    s_count,
    input  logic          s_last,
    output logic          d_valid,
    input  logic          d_ready,
    output logic [31:0]   d_bytes,
    output logic          d_bad,
    input  logic          q_valid,
    output logic          q_ready,
    input  logic [38:0]   q_address,
    input  logic [15:0]   q_beats,
    input  logic [6:0]    q_bytes,
    input  logic          q_last,
    output logic          y_valid,
    input  logic          y_ready,
    output logic [511:0]  y_data,
    output logic [6:0]    y_count,
    output logic          y_last,
    output logic          y_fault,
    input  logic          h_valid,
    output logic          h_ready,
    input  logic [63:0]   h_address,
    input  logic          h_write,
    input  logic [511:0]  h_data,
    input  logic [5:0]    h_tag,
    output logic          g_valid,
    input  logic          g_ready,
    output logic [5:0]    g_tag,
    output logic [511:0]  g_data,
    output logic [15:0]   m_valid,
    input  logic [15:0]   m_ready,
    output logic [1023:0] m_address,
    output logic [15:0]   m_write,
    output logic [8191:0] m_data,
    output logic [127:0]  m_tag,
    input  logic [15:0]   r_valid,
    output logic [15:0]   r_ready,
    input  logic [127:0]  r_tag,
    input  logic [8191:0] r_data
);
  // Lists, with the bytes of each frame's last beat beside them.
  logic [1:0] part_valid, part_ready, part_last, part_fault, list_ready;
  logic [127:0] part_address;
  logic [13:0] part_beats;
  logic bytes_room, bytes_valid;
  logic [6:0] last_bytes;
  logic [3:0] unused_level;
  logic walk_valid, walk_ready, entry_valid, entry_ready;
  logic [63:0] walk_address, entry;
  translate translation (
      .clk,
      .rst,
      .flush,
      .root,
      .s_valid({p_valid, q_valid && bytes_room}),
      .s_ready(list_ready),
      .s_address({p_address, q_address}),
      .s_beats({p_beats, q_beats}),
      .s_last({p_last, q_last}),
      .m_valid(part_valid),
      .m_ready(part_ready),
      .m_address(part_address),
      .m_beats(part_beats),
      .m_last(part_last),
      .m_fault(part_fault),
      .w_valid(walk_valid),
      .w_ready(walk_ready),
      .w_address(walk_address),
      .r_valid(entry_valid),
      .r_ready(entry_ready),
      .r_entry(entry),
      .misses
  );
  assign p_ready = list_ready[1];
  assign q_ready = list_ready[0] && bytes_room;
  fifo #(
      .W(7),
      .DEPTH(8)
  ) endings (
      .clk,
      .rst,
      .s_valid(q_valid && q_ready && q_last),
      .s_ready(bytes_room),
      .s_data(q_bytes),
      .m_valid(bytes_valid),
      .m_ready(y_valid && y_ready && y_last),
      .m_data(last_bytes),
      .level(unused_level)
  );

  logic [3:0] ask_valid, ask_ready, answer_valid, answer_ready;
  logic [63:0] read_address, write_address;
  logic [3:0] read_tag, write_tag;
  logic [23:0] answer_tags;
  logic [511:0] write_data;
  logic [2047:0] answers;
  logic beat_valid;
  dma_read gather (
      .clk,
      .rst,
      .s_valid(part_valid[0]),
      .s_ready(part_ready[0]),
      .s_address(part_address[63:0]),
      .s_beats({9'd0, part_beats[6:0]}),
      .s_last(part_last[0]),
      .s_fault(part_fault[0]),
      .a_valid(ask_valid[0]),
      .a_ready(ask_ready[0]),
      .a_address(read_address),
      .a_tag(read_tag),
      .r_valid(answer_valid[0]),
      .r_ready(answer_ready[0]),
      .r_tag(answer_tags[3:0]),
      .r_data(answers[511:0]),
      .m_valid(beat_valid),
      .m_ready(y_ready),
      .m_data(y_data),
      .m_last(y_last),
      .m_fault(y_fault)
  );
  // The bytes of a list's last beat were queued with its last piece.
  assign y_valid = beat_valid;
  assign y_count = y_last ? last_bytes : 7'd64;

  dma_write scatter (
      .clk,
      .rst,
      .p_valid(part_valid[1]),
      .p_ready(part_ready[1]),
      .p_address(part_address[127:64]),
      .p_beats({9'd0, part_beats[13:7]}),
      .p_last(part_last[1]),
      .p_fault(part_fault[1]),
      .s_valid,
      .s_ready,
      .s_data,
      .s_count,
      .s_last,
      .a_valid(ask_valid[1]),
      .a_ready(ask_ready[1]),
      .a_address(write_address),
      .a_data(write_data),
      .a_tag(write_tag),
      .b_valid(answer_valid[1]),
      .b_ready(answer_ready[1]),
      .d_valid,
      .d_ready,
      .d_bytes,
      .d_bad
  );

  // A walk reads the line of its entry, one at a time.
  assign ask_valid[2] = walk_valid;
  assign walk_ready = ask_ready[2];
  assign entry_valid = answer_valid[2];
  assign answer_ready[2] = entry_ready;
  logic [511:0] entries;
  assign entries = answers[1535:1024];
  assign entry = entries[{answer_tags[14:12], 6'd0}+:64];
  assign ask_valid[3] = h_valid;
  assign h_ready = ask_ready[3];
  assign g_valid = answer_valid[3];
  assign answer_ready[3] = g_ready;
  assign g_tag = answer_tags[23:18];
  assign g_data = answers[2047:1536];

  logic [23:0] ask_tags;
  assign ask_tags = {h_tag, 3'd0, walk_address[5:3], 2'd0, write_tag, 2'd0, read_tag};
  logic [31:0] depths;
  logic [3:0] served;
  logic [63:0] cycles;
  service_meter #(
      .T(6)
  ) meter (
      .clk,
      .rst,
      .asks(ask_valid),
      .takes(ask_valid & ask_ready),
      .ask_tags,
      .answers(answer_valid & answer_ready),
      .answer_tags,
      .depths,
      .served,
      .cycles
  );
  wrr_weights weighing (
      .clk,
      .rst,
      .alpha,
      .depths,
      .served,
      .cycles,
      .weights
  );

  // A request's tag: its place in its engine, then whether it writes, then the line.
  localparam int T = 6 + 1 + 512;
  logic [16*(T+2)-1:0] request_tags;
  channel_front #(
      .T(T)
  ) front (
      .clk,
      .rst,
      .weights,
      .s_valid(ask_valid),
      .s_ready(ask_ready),
      .s_address({h_address, walk_address, write_address, read_address}),
      .s_tag({
        h_data,
        h_write,
        ask_tags[23:18],
        512'd0,
        1'b0,
        ask_tags[17:12],
        write_data,
        1'b1,
        ask_tags[11:6],
        512'd0,
        1'b0,
        ask_tags[5:0]
      }),
      .m_valid,
      .m_ready,
      .m_address,
      .m_tag(request_tags)
  );
  for (genvar c = 0; c < 16; c++) begin : g_channel
    assign m_tag[c*8+:8] = {request_tags[c*(T+2)+T+:2], request_tags[c*(T+2)+:6]};
    assign m_write[c] = request_tags[c*(T+2)+6];
    assign m_data[c*512+:512] = request_tags[c*(T+2)+7+:512];
  end
  channel_back #(
      .T(6)
  ) back (
      .clk,
      .rst,
      .s_valid(r_valid),
      .s_ready(r_ready),
      .s_tag(r_tag),
      .s_data(r_data),
      .m_valid(answer_valid),
      .m_ready(answer_ready),
      .m_tag(answer_tags),
      .m_data(answers)
  );
  logic unused;
  assign unused = ^{bytes_valid, answer_tags[17:15], answer_tags[11:4], answers[1023:512]};
endmodule

// State of a CRC-32 (IEEE 802.3, reflected) behind BYTES bytes, from a state of zero. A state before
// them is added to the first four bytes.
//
// The state is linear in the bits: bit i, followed by N - 1 - i others, is a one that was shifted
// N - i times. So each bit of the state is the parity of a constant mask.
//
// Interface: combinational. The first byte is the lowest.
module crc32_beat #(
    parameter int BYTES = 64
) (
    input  logic [BYTES*8-1:0] data,
    output logic [31:0]        state
);
  localparam int N = BYTES * 8;

  function automatic logic [N-1:0] mask_of(input int place);
    logic [31:0] one;
    one = 32'd1;
    mask_of = '0;
    for (int i = 0; i < N; i++) begin
      one = (one >> 1) ^ (one[0] ? 32'hedb88320 : 32'd0);
      mask_of = {mask_of[N-2:0], 1'(one >> place)};
    end
  endfunction

  for (genvar k = 0; k < 32; k++) begin : g_bit
    localparam logic [N-1:0] Mask = mask_of(k);
    assign state[k] = ^(data & Mask);
  end
endmodule

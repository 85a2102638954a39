// Widths of QPack's codes by index (the table of crates/codec/src/qpack.rs): bits of a pair of
// codes, which are also the bytes of sixteen codes, the number of codes, and the code of the mean.
// Index 15 means sixteen halves.
//
// `inverse` is ceil(2^21 / levels), so that pair · inverse >> 21 divides 14 bits by `levels`.
//
// Interface: combinational.
module qpack_width (
    input  logic [3:0]  index,
    output logic [5:0]  bytes,
    output logic [7:0]  levels,
    output logic [6:0]  center,
    output logic [21:0] inverse
);
  always_comb begin
    case (index)
      4'd0: {bytes, levels, center, inverse} = {6'd0, 8'd1, 7'd0, 22'd2097152};
      4'd1: {bytes, levels, center, inverse} = {6'd2, 8'd2, 7'd1, 22'd1048576};
      4'd2: {bytes, levels, center, inverse} = {6'd2, 8'd2, 7'd0, 22'd1048576};
      4'd3: {bytes, levels, center, inverse} = {6'd4, 8'd4, 7'd2, 22'd524288};
      4'd4: {bytes, levels, center, inverse} = {6'd4, 8'd4, 7'd1, 22'd524288};
      4'd5: {bytes, levels, center, inverse} = {6'd5, 8'd5, 7'd2, 22'd419431};
      4'd6: {bytes, levels, center, inverse} = {6'd6, 8'd8, 7'd4, 22'd262144};
      4'd7: {bytes, levels, center, inverse} = {6'd7, 8'd11, 7'd5, 22'd190651};
      4'd8: {bytes, levels, center, inverse} = {6'd8, 8'd16, 7'd8, 22'd131072};
      4'd9: {bytes, levels, center, inverse} = {6'd9, 8'd22, 7'd11, 22'd95326};
      4'd10: {bytes, levels, center, inverse} = {6'd10, 8'd32, 7'd16, 22'd65536};
      4'd11: {bytes, levels, center, inverse} = {6'd11, 8'd45, 7'd22, 22'd46604};
      4'd12: {bytes, levels, center, inverse} = {6'd12, 8'd64, 7'd32, 22'd32768};
      4'd13: {bytes, levels, center, inverse} = {6'd13, 8'd90, 7'd45, 22'd23302};
      4'd14: {bytes, levels, center, inverse} = {6'd14, 8'd128, 7'd64, 22'd16384};
      default: {bytes, levels, center, inverse} = {6'd32, 8'd1, 7'd0, 22'd0};
    endcase
  end
endmodule

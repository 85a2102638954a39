// What a frame's header says of a page, for the codecs: shape, and sizes that follow from it.
//
// Interface: `header` is bytes 0 to 15 of a frame. Sizes follow 2 cycles later. `values` are those
// of the page, halves or bfloats (`bf16`); `padded` are those that a page's stream has, with whole sixteens of tokens for
// QPack. Sizes beyond 32 bits are all ones. `supported`: the engine has this codec for this kind of
// page. A page that is not supported has no frame, and a frame no page.
module page_shape #(
    parameter int PAIRS = 512
) (
    input  logic         clk,
    input  logic [127:0] header,
    output logic         is_qpack,
    output logic         bf16,
    output logic [15:0]  dim,
    output logic [15:0]  tokens,
    output logic [15:0]  groups,
    output logic [31:0]  values,
    output logic [31:0]  padded,
    output logic         supported
);
  logic [15:0] heads;
  logic [31:0] rows, sixteens, channels;
  logic [47:0] all_values, all_padded;
  logic is_known, has_values, fits_speckv, fits_qpack;

  assign is_qpack = header[7:0] == 8'd3;
  assign bf16 = header[16];
  assign heads  = header[32+:16];
  assign dim    = header[48+:16];
  assign tokens = header[64+:16];
  assign groups = sixteens[15:0];
  assign values = (all_values[47:32] != 16'd0) ? '1 : all_values[31:0];
  assign padded = !is_qpack ? values : (all_padded[47:32] != 16'd0) ? '1 : all_padded[31:0];

  // Codec, version 1, halves or bfloats of keys or values, and a reserved byte.
  assign is_known = (is_qpack || header[7:0] == 8'd1) && header[15:8] == 8'd1
      && (header[23:16] & 8'hee) == 8'd0 && header[31:24] == 8'd0;
  assign has_values = heads != 16'd0 && tokens != 16'd0;
  assign fits_speckv = dim >= 16'd32;
  assign fits_qpack = !dim[0] && dim != 16'd0 && dim <= 16'd128 && channels <= 32'(2 * PAIRS);

  always_ff @(posedge clk) begin
    rows     <= {16'd0, heads} * {16'd0, tokens};
    sixteens <= {16'd0, heads} * ({20'd0, tokens[15:4]} + {31'd0, |tokens[3:0]});
    channels <= {16'd0, heads} * {16'd0, dim};
    all_values <= {16'd0, rows} * {32'd0, dim};
    all_padded <= {{12'd0, sixteens} * {28'd0, dim}, 4'd0};
    supported <= is_known && has_values && (is_qpack ? fits_qpack : fits_speckv);
  end
  logic unused;
  assign unused = ^header[127:80];
endmodule

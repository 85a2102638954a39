// What a frame's header says of a page, for the codecs: shape, and sizes that follow from it.
//
// Interface: `header` is bytes 0 to 15 of a frame. Sizes follow 2 cycles later. `values` are those
// of the page; `padded` are the halves that a page's stream has, with whole sixteens of tokens for
// QPack.
module page_shape (
    input  logic         clk,
    input  logic [127:0] header,
    output logic         is_qpack,
    output logic [15:0]  dim,
    output logic [15:0]  tokens,
    output logic [15:0]  groups,
    output logic [31:0]  values,
    output logic [31:0]  padded
);
  logic [15:0] heads;
  logic [31:0] rows, sixteens;

  assign is_qpack = header[7:0] == 8'd3;
  assign heads  = header[32+:16];
  assign dim    = header[48+:16];
  assign tokens = header[64+:16];
  assign groups = sixteens[15:0];
  assign padded = is_qpack ? {sixteens[27:0] * {12'd0, dim}, 4'd0} : values;

  always_ff @(posedge clk) begin
    rows     <= {16'd0, heads} * {16'd0, tokens};
    sixteens <= {16'd0, heads} * ({20'd0, tokens[15:4]} + {31'd0, |tokens[3:0]});
    values   <= rows * {16'd0, dim};
  end
  logic unused;
  assign unused = ^{header[127:80], header[31:8], sixteens[31:28]};
endmodule

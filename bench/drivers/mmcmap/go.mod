// The library has no tagged version: this is the commit whose figures its documentation publishes. The lab builds from
// a copy of this file beside its binary, in which the go command puts the full version, and a sum file beside that.
module lab/drivers/mmcmap

go 1.20

require github.com/sirgallo/mmcmap 01b668900612

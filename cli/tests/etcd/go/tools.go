//go:build tools

// Programs that are built from this module: etcd's command line client, and its own tests.
package etcd

import (
	_ "go.etcd.io/etcd/etcdctl/v3"
	_ "go.etcd.io/etcd/server/v3"
	_ "go.etcd.io/etcd/tests/v3/common"
)

//! NIC slots: vmxnet3 as function 0 and its RDMA function beside it.

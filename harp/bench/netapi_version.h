/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The calls of struct netapi for one version. netapi.c defines API and includes this file once per
 * version, so it has no include guard.
 */
#define PASTE_(a, n, b) a##n##b
#define PASTE(a, n, b) PASTE_(a, n, b)
#define NAME(word) PASTE(v, API, _##word)

static const PASTE(ncclNet_v, API, _t) * NAME(net);

#if API >= 11
static void *NAME(context);
#define CONTEXT NAME(context),
#else
#define CONTEXT
#endif

static ncclResult_t NAME(init)(ncclDebugLogger_t logger)
{
#if API >= 11
  ncclNetCommConfig_v10_t config = {.trafficClass = -1};
  return NAME(net)->init(&NAME(context), 1, &config, logger, NULL);
#elif API == 10
  return NAME(net)->init(logger, NULL);
#else
  return NAME(net)->init(logger);
#endif
}

static ncclResult_t NAME(finalize)(void)
{
#if API >= 11
  return NAME(net)->finalize(NAME(context));
#else
  return ncclSuccess;
#endif
}

static ncclResult_t NAME(device_name)(int device, const char **name)
{
#if API == 12
  ncclNetProperties_v12_t properties;
#elif API == 11
  ncclNetProperties_v11_t properties;
#elif API >= 9
  ncclNetProperties_v9_t properties;
#elif API == 8
  ncclNetProperties_v8_t properties;
#elif API == 7
  ncclNetProperties_v7_t properties;
#elif API >= 5
  ncclNetProperties_v5_t properties;
#else
  ncclNetProperties_v4_t properties;
#endif
  ncclResult_t result = NAME(net)->getProperties(device, &properties);
  *name = result == ncclSuccess ? properties.name : "?";
  return result;
}

static ncclResult_t NAME(listen)(int device, void *handle, void **listener)
{
  return NAME(net)->listen(CONTEXT device, handle, listener);
}

static ncclResult_t NAME(connect)(int device, void *handle, void **comm)
{
#if API >= 7
  ncclNetDeviceHandle_v7_t *device_comm = NULL;
#endif
#if API == 10
  ncclNetCommConfig_v10_t config = {.trafficClass = -1};
  return NAME(net)->connect(device, &config, handle, comm, &device_comm);
#elif API >= 7
  return NAME(net)->connect(CONTEXT device, handle, comm, &device_comm);
#else
  return NAME(net)->connect(device, handle, comm);
#endif
}

static ncclResult_t NAME(accept)(void *listener, void **comm)
{
#if API >= 7
  ncclNetDeviceHandle_v7_t *device_comm = NULL;
  return NAME(net)->accept(listener, comm, &device_comm);
#else
  return NAME(net)->accept(listener, comm);
#endif
}

static ncclResult_t NAME(register_memory)(void *comm, void *data, size_t size, void **mhandle)
{
#if API < 8
  if (size > INT_MAX) { /* as NCCL does */
    return ncclInternalError;
  }
  return NAME(net)->regMr(comm, data, (int)size, NCCL_PTR_HOST, mhandle);
#else
  return NAME(net)->regMr(comm, data, size, NCCL_PTR_HOST, mhandle);
#endif
}

static ncclResult_t NAME(isend)(void *comm, void *data, size_t size, void *mhandle, void **request)
{
#if API >= 10
  return NAME(net)->isend(comm, data, size, 0, mhandle, NULL, request);
#elif API == 9
  return NAME(net)->isend(comm, data, size, 0, mhandle, request);
#elif API >= 5
  return NAME(net)->isend(comm, data, (int)size, 0, mhandle, request);
#else
  return NAME(net)->isend(comm, data, (int)size, mhandle, request);
#endif
}

static ncclResult_t NAME(irecv)(void *comm, void *data, size_t size, void *mhandle, void **request)
{
#if API >= 9
  int tag = 0;
  void *phandle = NULL;
#if API >= 10
  return NAME(net)->irecv(comm, 1, &data, &size, &tag, &mhandle, &phandle, request);
#else
  (void)phandle;
  return NAME(net)->irecv(comm, 1, &data, &size, &tag, &mhandle, request);
#endif
#elif API >= 5
  int tag = 0, length = (int)size;
  return NAME(net)->irecv(comm, 1, &data, &length, &tag, &mhandle, request);
#else
  return NAME(net)->irecv(comm, data, (int)size, mhandle, request);
#endif
}

static void NAME(bind)(struct netapi *api, const void *symbol)
{
  NAME(net) = symbol;
  *api = (struct netapi){
      .version = API,
      .max_requests = API < 7 ? NCCL_NET_MAX_REQUESTS_V4 : NCCL_NET_MAX_REQUESTS,
      .handle_size = API < 5 ? NCCL_NET_HANDLE_MAXSIZE_V4 : NCCL_NET_HANDLE_MAXSIZE,
      .name = NAME(net)->name,
      .init = NAME(init),
      .finalize = NAME(finalize),
      .devices = NAME(net)->devices,
      .device_name = NAME(device_name),
      .listen = NAME(listen),
      .connect = NAME(connect),
      .accept = NAME(accept),
      .register_memory = NAME(register_memory),
      .deregister_memory = NAME(net)->deregMr,
      .isend = NAME(isend),
      .irecv = NAME(irecv),
      .test = NAME(net)->test,
      .close_send = NAME(net)->closeSend,
      .close_receive = NAME(net)->closeRecv,
      .close_listener = NAME(net)->closeListen,
  };
}

#undef CONTEXT
#undef NAME
#undef PASTE
#undef PASTE_
#undef API

/* SPDX-License-Identifier: Apache-2.0 */
/* The send queue: references to bytes, and transmit records. */
#ifndef HARP_STACK_TCP_SNDQ_H
#define HARP_STACK_TCP_SNDQ_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/uio.h>

struct harp_packet;
struct harp_tcp;
/* A reference in the send queue: bytes that live until acknowledged. */
struct harp_reference {
  struct harp_reference *next;
  const uint8_t *data;
  struct harp_packet *packet; /* the copying layer's memory, else NULL */
  uint32_t seq;
  uint32_t length;
  bool end; /* a segment ends with it */
};

/*
 * A transmit record: a stretch of sequence space that went out at one time.
 * Ordered by sequence (prev, next); older and newer link it into the order of
 * time while it is in flight (RFC 8985, 5.1), into the queue of what is to be
 * sent again while it is lost, and into the runs once it is sacked: what is
 * sacked side by side is one record.
 */
struct harp_record {
  struct harp_record *prev, *next;
  struct harp_record *older, *newer;
  struct harp_reference *reference; /* holds the byte at seq; NULL: a bare FIN */
  uint64_t sent;                    /* ns */
  uint32_t seq, end;
  uint16_t transmits;
  bool sacked, lost;
  bool retransmitted; /* in flight again since it was last marked lost */
  bool fin;           /* the last number of the range is the FIN */
};

int tcp_sndq_push(struct harp_tcp *tcp, const void *data, uint32_t length,
                  struct harp_packet *packet);
/* The last reference's memory has grown by length bytes. */
void tcp_sndq_extend(struct harp_tcp *tcp, uint32_t length);
void tcp_sndq_release(struct harp_tcp *tcp, uint32_t una);
void tcp_sndq_clear(struct harp_tcp *tcp);
/* The gather list of [seq, seq + length); returns entries used, and in *covered
 * how many bytes they hold: fewer when max was too small for all, or where a
 * segment is to end. */
int tcp_sndq_gather(const struct harp_reference *reference, uint32_t seq, uint32_t length,
                    struct iovec *iov, int max, uint32_t *covered);
struct harp_reference *tcp_sndq_seek(struct harp_reference *reference, uint32_t seq);
struct harp_record *tcp_record_append(struct harp_tcp *tcp, uint32_t seq, uint32_t end,
                                      struct harp_reference *reference, bool fin);
/* Cuts a record that is not sacked in two at seq, which lies within; NULL: no memory. Returns
 * the right part. */
struct harp_record *tcp_record_split(struct harp_tcp *tcp, struct harp_record *record,
                                     uint32_t seq);
/* ns since it was sent. */
uint64_t tcp_record_age(const struct harp_tcp *tcp, const struct harp_record *record);
void tcp_record_free(struct harp_tcp *tcp, struct harp_record *record);
/* It was sent now: sets when, and links it into the order of time. RACK goes by who was sent before
 * whom, and at the same time by sequence (RFC 8985, 6.2); a copy is therefore at least a nanosecond
 * later than the newest in flight, be that ahead of the clock. */
void tcp_record_sent(struct harp_tcp *tcp, struct harp_record *record);
/* Links a record into the order of time, as the newest. */
void tcp_record_in_flight(struct harp_tcp *tcp, struct harp_record *record);
/* Takes it out of the order of time, the queue of the lost or the runs. */
void tcp_record_unlink(struct harp_tcp *tcp, struct harp_record *record);
void tcp_record_queue_lost(struct harp_tcp *tcp, struct harp_record *record);
/* Links a record into the runs behind another; NULL: as the first. */
void tcp_record_link_sacked(struct harp_tcp *tcp, struct harp_record *record,
                            struct harp_record *run);

#endif

SELECT id FROM procrastinate_fetch_job_v2(NULL, NULL) \gset
SELECT procrastinate_finish_job_v1(:id, 'succeeded', false);
